// AMX's tile intrinsics, and what they need to be safe.
#pragma once

#if defined(__AMX_TILE__) || defined(__AMXTILE__)  // the latter: older Clangs
#define QUIRE_TILES 1
#include <immintrin.h>
#include <stdint.h>

namespace quire::QUIRE_ISA {
namespace {

// The shapes of the tile registers, as the instruction reads them.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

inline void configure(const TileConfig& config) {
  __asm__ volatile("" : : "r"(&config) : "memory");  // see QUIRE_TILE_LOAD
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace quire::QUIRE_ISA

// GCC's intrinsics are assembly that does not say which memory it reads: it may drop stores to what a
// tile is loaded from, or move them behind the load (GCC 12 did so with a configuration).
#define QUIRE_TILE_LOAD(t, base, stride)   \
  do {                                     \
    __asm__ volatile("" : : : "memory");   \
    _tile_loadd(t, base, stride);          \
  } while (0)
// The same for what is read once: it displaces less of the L1 cache.
#define QUIRE_TILE_STREAM(t, base, stride) \
  do {                                     \
    __asm__ volatile("" : : : "memory");   \
    _tile_stream_loadd(t, base, stride);   \
  } while (0)
#define QUIRE_TILE_READ(once, t, base, stride) \
  if constexpr (once) {                        \
    QUIRE_TILE_STREAM(t, base, stride);        \
  } else {                                     \
    QUIRE_TILE_LOAD(t, base, stride);          \
  }

#endif
