// The threads that compute: one pool an engine.
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace quire {

class Plan;

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

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(context, task) for every task in [0, tasks), each once, on all threads, in ascending
  // order of claiming. Returns when all are done. The body must not throw or call `run`.
  void run(int64_t tasks, void (*body)(void*, int64_t), void* context);

  // At least `bytes` of memory aligned to 64 for intermediate results, until the next call of
  // `scratch`; its content is undefined. Unlike `run`, for one thread of the process at a time.
  void* scratch(int64_t bytes);

  // The plan that ops for this pool are recorded into instead of being run, or null.
  Plan* recording = nullptr;

 private:
  static void* enter(void* pool);
  void work();
  void stop();
  uint32_t share();
  void wait_for_the_others();

  // The job. Its fields are written only while no task of it is left to claim.
  std::atomic<void (*)(void*, int64_t)> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> tasks_{0};
  // Upper half: the job's number. Lower half: how many of its tasks nobody has claimed yet.
  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};  // tasks; the caller sleeps on it
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> jobs_{0};  // how many were started; workers sleep on it
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stopping_{false};

  std::mutex one_job_;
  std::vector<pthread_t> workers_;
  pid_t owner_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace quire
