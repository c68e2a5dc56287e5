// The threads that compute: one pool per engine.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace quire {

class Plan;

// Memory that will be read soon.
struct Span {
  const uint8_t* at;
  int64_t bytes;
};

// How the tasks of a job are distributed. kQueue: all threads take from one queue, so long tasks can be
// put first. kShares: each thread gets a range of consecutive tasks, so it reads memory as one stream;
// when its range is done, it takes tasks from other threads' ranges.
enum class Deal { kQueue, kShares };

// Persistent threads that share the tasks of one job at a time; the caller of `run` is thread 0.
//
// A waiting thread spins for about 50 microseconds and then sleeps in the kernel, so an idle pool uses
// no CPU time. A job is finished when its tasks are finished, no matter which threads ran them. So a
// thread that wakes up late, or that was descheduled, delays a job only if it holds a task. For the
// same reason `run` works in a forked child, where only the calling thread exists.
class Pool {
 public:
  // Throws std::invalid_argument unless 1 <= threads <= 1024, std::system_error if a thread cannot be
  // started.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // The number of jobs run so far, modulo 2^32. Each ends with a barrier.
  uint32_t regions() const { return jobs_.load(std::memory_order_relaxed); }

  // Calls body(context, task) once for every task in [0, tasks), on all threads. Tasks of the queue, or
  // of a share, are claimed in ascending order. Returns when all are done. The body must not throw or
  // call `run`.
  void run(int64_t tasks, void (*body)(void*, int64_t), void* context, Deal deal = Deal::kQueue);

  // What the next kShares job reads first: waiting threads prefetch the beginning of their share.
  void set_ahead(const void* at, int64_t bytes);
  // What later jobs read first. While the caller does something else, threads without a task prefetch
  // it. Any thread may read it later, so it should fit into the last-level cache. Only the first
  // kIdleSpans spans are used; an empty list stops the prefetching.
  void set_idle(const std::vector<Span>& spans);
  static constexpr size_t kIdleSpans = 16;

  // At least `bytes` of memory aligned to 64 for intermediate results, until the next call of
  // `scratch`; its content is undefined. Unlike `run`, only one thread at a time may call this.
  void* scratch(int64_t bytes);

  // If not null, ops on this pool are recorded into this plan instead of being run.
  Plan* recording = nullptr;

 private:
  // Upper half: the job's number. Lower half: the number of its tasks that are not claimed yet.
  struct alignas(64) Share {
    std::atomic<uint64_t> unclaimed{0};
  };
  struct Worker {
    Pool* pool;
    int number;
    pthread_t thread;
  };

  static void* enter(void* worker);
  void work(int number);
  void stop();
  int64_t share_end(int64_t tasks, Deal deal, int thread) const;
  uint32_t help(int number);
  uint32_t empty(int thread);
  template <class Done>
  bool spin(int number, const Done& done) const;
  // A thread's progress in prefetching the idle spans.
  struct Fetched {
    uint32_t version = 0;
    size_t span = 0;
    int64_t bytes = 0;
  };
  template <class Done>
  bool fetch_idle(int number, Fetched& fetched, const Done& done) const;
  void wait_for_the_others();

  const int threads_;

  // The current job. These fields are written only while it has no unclaimed task.
  std::atomic<void (*)(void*, int64_t)> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> tasks_{0};
  std::atomic<Deal> deal_{Deal::kQueue};
  std::unique_ptr<Share[]> shares_;  // one per thread; the first also serves as the queue
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // tasks; the caller sleeps on it
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> jobs_{0};  // number of jobs started; workers sleep on it
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};

  alignas(64) std::atomic<const uint8_t*> ahead_{nullptr};
  std::atomic<int64_t> ahead_bytes_{0};
  // A span read while it is written may mix two spans. That is harmless: the wrong memory is prefetched.
  struct IdleSpan {
    std::atomic<const uint8_t*> at{nullptr};
    std::atomic<int64_t> bytes{0};
  };
  IdleSpan idle_[kIdleSpans];
  std::atomic<size_t> idle_spans_{0};
  std::atomic<uint32_t> idle_version_{0};

  std::mutex one_job_;
  std::vector<Worker> workers_;
  pid_t owner_;
  struct Memory {
    void* at = nullptr;
    int64_t bytes = 0;
  } scratch_;
};

// `Pool::run` for a callable. A single task runs on the calling thread and wakes no other.
template <class Body>
void run_tasks(Pool& pool, int64_t tasks, const Body& body) {
  if (tasks == 1) return body(0);
  pool.run(
      tasks, [](void* b, int64_t task) { (*static_cast<const Body*>(b))(task); },
      const_cast<Body*>(&body));
}

// For loops that wait for another thread: leaves more of the core to its other hyperthread.
inline void pause() {
#if defined(QUIRE_X86)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace quire
