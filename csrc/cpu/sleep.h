// How threads sleep until a word changes. Linux has futexes, also for a word that processes share.
// Elsewhere threads of one process wait as the standard library lets them, and other processes look
// again and again.
#pragma once

#include <stdint.h>

#include <atomic>
#include <chrono>

#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <thread>
#endif

namespace quire {

// Sleeps while the word has this value, or shorter.
inline void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  word.wait(value);
#endif
}

// Wakes so many threads, or more, that sleep on the word.
inline void wake(std::atomic<uint32_t>& word, int count) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
#else
  count == 1 ? word.notify_one() : word.notify_all();
#endif
}

// The same for a word that processes share; sleeps `most` at most.
inline void sleep_while_shared(const std::atomic<uint32_t>& word, uint32_t value,
                               std::chrono::nanoseconds most) {
#if defined(__linux__)
  const timespec end{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &end, nullptr, 0);
#else
  constexpr std::chrono::nanoseconds kNap = std::chrono::microseconds(50);
  if (word.load() == value) std::this_thread::sleep_for(most < kNap ? most : kNap);
#endif
}

inline void wake_shared([[maybe_unused]] std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

}  // namespace quire
