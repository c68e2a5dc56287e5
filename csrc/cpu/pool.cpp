#include "pool.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "sanitizer.h"
#include "sleep.h"

namespace quire {

namespace {

constexpr int64_t kHugePage = 2 << 20;

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
// Bytes that a waiting thread prefetches: only a part of the second-level cache.
constexpr int64_t kAheadBytes = 192 << 10;
constexpr int64_t kAheadStep = 8 * 64;
constexpr size_t kStackBytes = 2 << 20;

void fetch(const uint8_t* at) {
  for (int64_t i = 0; i < kAheadStep; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// Of a thread that runs kernels: the system's default may be too small for them (`ulimit -s`).
struct Attributes {
  Attributes() {
    pthread_attr_init(&value);
    size_t bytes = 0;
    if (pthread_attr_getstacksize(&value, &bytes) == 0 && bytes < kStackBytes) {
      pthread_attr_setstacksize(&value, kStackBytes);
    }
  }
  ~Attributes() { pthread_attr_destroy(&value); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  pthread_attr_t value;
};

uint32_t tasks_left(uint64_t unclaimed) { return static_cast<uint32_t>(unclaimed); }
uint32_t job_number(uint64_t unclaimed) { return static_cast<uint32_t>(unclaimed >> 32); }

}  // namespace

Pool::Pool(int threads) : threads_(threads), owner_(getpid()) {
  if (threads < 1 || threads > 1024) {
    throw std::invalid_argument("a pool has 1 to 1024 threads, not " + std::to_string(threads));
  }
  shares_ = std::make_unique<Share[]>(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads - 1));  // their addresses stay
  const Attributes attributes;
  for (int i = 1; i < threads; ++i) {
    Worker& worker = workers_.emplace_back(Worker{this, i, {}});
    const int error = pthread_create(&worker.thread, &attributes.value, enter, &worker);
    if (error != 0) {
      workers_.pop_back();
      stop();
      throw std::system_error(error, std::generic_category(), "starting a kernel thread");
    }
    pthread_setname_np(worker.thread, "quire-kernels");
  }
}

Pool::~Pool() {
  stop();
  free(scratch_.at);
}

void Pool::stop() {
  stopping_.store(true);
  jobs_.fetch_add(1);
  wake(jobs_, INT_MAX);
  if (getpid() == owner_) {  // a forked child has no workers to wait for
    for (const Worker& worker : workers_) pthread_join(worker.thread, nullptr);
  }
}

void Pool::run(int64_t tasks, void (*body)(void*, int64_t), void* context, Deal deal) {
  if (threads_ == 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(context, task);
    return;
  }
  if (tasks > INT_MAX) throw std::invalid_argument("a job has at most 2^31 - 1 tasks");
  const std::lock_guard<std::mutex> lock(one_job_);
  const uint64_t number = job_number(shares_[0].unclaimed.load(std::memory_order_relaxed)) + 1u;
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_relaxed);
  deal_.store(deal, std::memory_order_relaxed);
  unfinished_.store(static_cast<uint32_t>(tasks), std::memory_order_relaxed);
  int64_t begin = 0;
  for (int i = 0; i < threads_; ++i) {
    const int64_t end = share_end(tasks, deal, i);
    shares_[i].unclaimed.store(number << 32 | static_cast<uint64_t>(end - begin),
                               std::memory_order_release);
    begin = end;
  }
  jobs_.fetch_add(1);  // sequentially consistent with `sleepers_`: one of the two sides sees the other
  if (sleepers_.load() != 0) wake(jobs_, static_cast<int>(tasks) - 1);
  const uint32_t finished = help(0);
  if (unfinished_.fetch_sub(finished) != finished) wait_for_the_others();
}

void Pool::set_ahead(const void* at, int64_t bytes) {
  ahead_.store(static_cast<const uint8_t*>(at), std::memory_order_relaxed);
  ahead_bytes_.store(bytes, std::memory_order_relaxed);
}

void Pool::set_idle(const std::vector<Span>& spans) {
  idle_spans_.store(0, std::memory_order_relaxed);
  const size_t count = std::min(spans.size(), kIdleSpans);
  if (count == 0) return;
  for (size_t i = 0; i < count; ++i) {
    idle_[i].at.store(spans[i].at, std::memory_order_relaxed);
    idle_[i].bytes.store(spans[i].bytes, std::memory_order_relaxed);
  }
  idle_version_.fetch_add(1, std::memory_order_relaxed);
  idle_spans_.store(count, std::memory_order_release);
}

void* Pool::scratch(int64_t bytes) {
  Memory& memory = scratch_;
  if (bytes > memory.bytes) {
    free(memory.at);
    memory = {};
    const int64_t page = bytes < kHugePage ? 4096 : kHugePage;
    const int64_t rounded = (bytes + bytes / 4 + page - 1) / page * page;  // grows in few steps
    memory.at = aligned_alloc(static_cast<size_t>(page), static_cast<size_t>(rounded));
    if (memory.at == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (page == kHugePage) madvise(memory.at, static_cast<size_t>(rounded), MADV_HUGEPAGE);
#endif
    memory.bytes = rounded;
  }
  permit(memory.at, bytes);
  forbid(static_cast<uint8_t*>(memory.at) + bytes, memory.bytes - bytes);
  return memory.at;
}

// The task after the last one of a thread's share.
int64_t Pool::share_end(int64_t tasks, Deal deal, int thread) const {
  return deal == Deal::kQueue ? tasks : tasks * (thread + 1) / threads_;
}

// Claims and runs tasks until none is left, starting with the thread's own share. Returns their number.
uint32_t Pool::help(int number) {
  uint32_t finished = 0;
  for (int i = 0; i < threads_; ++i) finished += empty((number + i) % threads_);
  return finished;
}

// The same for one share.
//
// The number of unclaimed tasks and the job's number are exchanged together. If the exchange succeeds,
// the fields that were read belong to this job, and the job cannot end before the claimed task ends.
uint32_t Pool::empty(int thread) {
  std::atomic<uint64_t>& share = shares_[thread].unclaimed;
  uint32_t finished = 0;
  uint64_t unclaimed = share.load(std::memory_order_acquire);
  while (tasks_left(unclaimed) != 0) {
    const auto body = body_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const int64_t tasks = tasks_.load(std::memory_order_relaxed);
    const Deal deal = deal_.load(std::memory_order_relaxed);
    if (!share.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    body(context, share_end(tasks, deal, thread) - tasks_left(unclaimed));
    ++finished;
    unclaimed = share.load(std::memory_order_acquire);
  }
  return finished;
}

// Spins until `done()` or until the time is up; returns whether it is done. Prefetches meanwhile.
template <class Done>
bool Pool::spin(int number, const Done& done) const {
  const auto end = Clock::now() + kSpin;
  const uint8_t* const all = ahead_.load(std::memory_order_relaxed);
  const int64_t bytes = all == nullptr ? 0 : ahead_bytes_.load(std::memory_order_relaxed);
  const uint8_t* at = all + bytes * number / threads_;
  const uint8_t* const last = at + std::min(bytes / threads_, kAheadBytes);
  for (; at < last; at += kAheadStep) {
    if (done()) return true;
    fetch(at);
  }
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
  } while (Clock::now() < end);
  return done();
}

// Prefetches this thread's part of each idle span, until `done()` or the last span. Returns done().
template <class Done>
bool Pool::fetch_idle(int number, Fetched& fetched, const Done& done) const {
  const size_t spans = idle_spans_.load(std::memory_order_acquire);
  if (spans == 0) return false;
  const uint32_t version = idle_version_.load(std::memory_order_relaxed);
  if (fetched.version != version) fetched = {version, 0, 0};
  for (; fetched.span < spans; ++fetched.span, fetched.bytes = 0) {
    const IdleSpan& span = idle_[fetched.span];
    const int64_t bytes = span.bytes.load(std::memory_order_relaxed);
    const int64_t workers = threads_ - 1;
    const int64_t begin = bytes * (number - 1) / workers, end = bytes * number / workers;
    const uint8_t* const at = span.at.load(std::memory_order_relaxed) + begin;
    for (; fetched.bytes < end - begin; fetched.bytes += kAheadStep) {
      if (done()) return true;
      fetch(at + fetched.bytes);
    }
  }
  return false;
}

void Pool::wait_for_the_others() {
  if (spin(0, [this] { return unfinished_.load(std::memory_order_acquire) == 0; })) return;
  caller_sleeps_.store(1);
  for (uint32_t left; (left = unfinished_.load()) != 0;) sleep_while(unfinished_, left);
  caller_sleeps_.store(0);
}

void* Pool::enter(void* worker) {
  const Worker& self = *static_cast<Worker*>(worker);
  self.pool->work(self.number);
  return nullptr;
}

void Pool::work(int number) {
  Fetched fetched;
  for (;;) {
    const uint32_t seen = jobs_.load();
    const uint32_t finished = help(number);
    if (finished != 0 && unfinished_.fetch_sub(finished) == finished && caller_sleeps_.load() != 0) {
      wake(unfinished_, 1);
    }
    if (stopping_.load()) return;
    const auto started = [this, seen] { return jobs_.load() != seen; };
    if (fetch_idle(number, fetched, started) || spin(number, started)) continue;
    sleepers_.fetch_add(1);
    if (!started()) sleep_while(jobs_, seen);
    sleepers_.fetch_sub(1);
  }
}

}  // namespace quire
