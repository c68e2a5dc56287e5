// Guards of memory that Quire allocates itself, for AddressSanitizer. Without it, they do nothing.
#pragma once

#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_ADDRESS_SANITIZER
#endif
#endif

#if defined(QUIRE_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace quire {

#if defined(QUIRE_ADDRESS_SANITIZER)
constexpr int64_t kGuard = 64;  // bytes behind what is handed out, for nobody

// Reading or writing these bytes is an error from now on; or no more.
inline void forbid(const void* at, int64_t bytes) {
  __asan_poison_memory_region(at, static_cast<size_t>(bytes));
}
inline void permit(const void* at, int64_t bytes) {
  __asan_unpoison_memory_region(at, static_cast<size_t>(bytes));
}
#else
constexpr int64_t kGuard = 0;
inline void forbid(const void*, int64_t) {}
inline void permit(const void*, int64_t) {}
#endif

}  // namespace quire
