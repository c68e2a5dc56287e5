// The threads that compute: one pool an engine.
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

// Memory that is read soon.
struct Span {
  const uint8_t* at;
  int64_t bytes;
};

// How the tasks of a job are dealt out: from one queue, so that the long ones can come first; or a
// share of neighbours to each thread, which then reads memory as one stream, and helps the others.
enum class Deal { kQueue, kShares };

// Persistent threads that share the tasks of one job at a time; the caller of `run` is thread 0.
//
// A thread that waits spins for some 50 microseconds and then sleeps in the kernel, so an idle pool
// costs nothing. A job is finished when its tasks are, whoever ran them: a thread that wakes late,
// or whose core another process took, delays nobody unless it holds a task. For the same reason
// `run` works in a forked child, where only the caller is left.
class Pool {
 public:
  // Raises std::invalid_argument unless 1 <= threads <= 1024, std::system_error if one won't start.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // Jobs that were shared so far, modulo 2^32: each ends with the threads waiting for each other.
  uint32_t regions() const { return jobs_.load(std::memory_order_relaxed); }

  // Calls body(context, task) for every task in [0, tasks), each once, on all threads; those of the
  // queue, or of a share, are claimed in ascending order. Returns when all are done. The body must
  // not throw or call `run`.
  void run(int64_t tasks, void (*body)(void*, int64_t), void* context, Deal deal = Deal::kQueue);

  // What the next job in shares reads first: threads that wait fetch the beginning of their share.
  void set_ahead(const void* at, int64_t bytes);
  // What later jobs read first, while the caller does something else: the other threads, once they
  // have no task, fetch it for whoever reads it, so it should fit into the last-level cache. Of the
  // spans at most kIdleSpans count; none ends it.
  void set_idle(const std::vector<Span>& spans);
  static constexpr size_t kIdleSpans = 16;

  // At least `bytes` of memory aligned to 64 for intermediate results, until the next call of
  // `scratch`; its content is undefined. Unlike `run`, for one thread of the process at a time.
  // `kOuter` is memory of its own, for an op that runs others.
  enum Scratch { kInner, kOuter, kScratchCount };
  void* scratch(int64_t bytes, Scratch which = kInner);

  // The plan that ops for this pool are recorded into instead of being run, or null.
  Plan* recording = nullptr;

 private:
  // Upper half: the job's number. Lower half: how many of its tasks nobody has claimed yet.
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
  // How far a thread has come with what it fetches while idle.
  struct Fetched {
    uint32_t version = 0;
    size_t span = 0;
    int64_t bytes = 0;
  };
  template <class Done>
  bool fetch_idle(int number, Fetched& fetched, const Done& done) const;
  void wait_for_the_others();

  const int threads_;

  // The job. Its fields are written only while no task of it is left to claim.
  std::atomic<void (*)(void*, int64_t)> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> tasks_{0};
  std::atomic<Deal> deal_{Deal::kQueue};
  std::unique_ptr<Share[]> shares_;  // one a thread; the first is the queue, too
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // tasks; the caller sleeps on it
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> jobs_{0};  // how many were started; workers sleep on it
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};

  alignas(64) std::atomic<const uint8_t*> ahead_{nullptr};
  std::atomic<int64_t> ahead_bytes_{0};
  // Read while it is written, a span may be half another's: then something else is fetched.
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
  } scratch_[kScratchCount];
};

// `Pool::run` of a callable; one task is run here, and wakes nobody.
template <class Body>
void run_tasks(Pool& pool, int64_t tasks, const Body& body) {
  if (tasks == 1) return body(0);
  pool.run(
      tasks, [](void* b, int64_t task) { (*static_cast<const Body*>(b))(task); },
      const_cast<Body*>(&body));
}

// For loops that wait for another thread: leaves the core's other half more of it.
inline void pause() {
#if defined(QUIRE_X86)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace quire
