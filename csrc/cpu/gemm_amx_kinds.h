// What tiles multiply (gemm_amx.cpp): of each kind of weight, what it sums in, whether it may have
// groups, the bytes of a value of x and those of W a step, and a panel of W as the registers want it.
#pragma once

#include "gemm_parts.h"
#include "simd_float8.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t kPanelSteps = 16;  // 32 KiB of tiles

struct BF16 {
  using Sum = float;
  static constexpr bool kGroups = false;
  static constexpr int64_t kBytes = 2, kWeightStep = 2 * kTileBytes;
  const uint8_t* tiles(const uint8_t* weight, int64_t) const { return weight; }
};
struct S8 {
  using Sum = int32_t;
  static constexpr bool kGroups = false;
  static constexpr int64_t kBytes = 1, kWeightStep = 2 * kTileBytes;
  const uint8_t* tiles(const uint8_t* weight, int64_t) const { return weight; }
};
struct S8A16 {
  using Sum = float;
  static constexpr bool kGroups = false;
  static constexpr int64_t kBytes = 2, kWeightStep = kTileBytes;
  alignas(64) uint8_t converted[kPanelSteps * 2 * kTileBytes];
  const uint8_t* tiles(const uint8_t* weight, int64_t steps) {
    for (int64_t i = 0; i < steps * kWeightStep; i += 32) {
      _mm512_store_si512(converted + 2 * i, reinterpret_cast<__m512i>(s8_pairs(weight + i)));
    }
    return converted;
  }
};

template <class F8>
struct F8A16 {
  using Sum = float;
  static constexpr bool kGroups = true;
  static constexpr int64_t kBytes = 2, kWeightStep = kTileBytes;
  alignas(64) uint8_t converted[kPanelSteps * 2 * kTileBytes];
  const Float8Pairs<F8> pairs;
  const uint8_t* tiles(const uint8_t* weight, int64_t steps) {
    for (int64_t quad = 0; quad < steps * 8; ++quad) {
      for (int64_t tile = 0; tile < 2; ++tile, weight += 64) {
        __m512i lines[2];
        pairs.widen(_mm512_loadu_si512(weight), lines[0], lines[1]);
        uint8_t* const to = converted + (quad / 8 * 2 + tile) * kTileBytes + quad % 8 * 128;
        _mm512_store_si512(to, lines[0]);
        _mm512_store_si512(to + 64, lines[1]);
      }
    }
    return converted;
  }
};

// c += x · w.
#define QUIRE_DOT(T, c, x, w)      \
  if constexpr (T::kBytes == 2) {  \
    _tile_dpbf16ps(c, x, w);       \
  } else {                         \
    _tile_dpbssd(c, x, w);         \
  }

}  // namespace
}  // namespace quire::QUIRE_ISA
