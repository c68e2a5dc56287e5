// Attention on AMX tiles: weights times values.
#pragma once

#include "attention_amx.h"

namespace quire::QUIRE_ISA {
namespace {

// Interleaves the values of keys 2i and 2i + 1 of a step of 32; missing keys are 0.
template <class T>
inline void pack_values(const Work& w, const Keys<T>& keys, int step, uint32_t (*v)[kCells],
                        Ahead& ahead) {
  for (int i = 0; i < kSide; ++i) {
    if (i % 2 == 0) ahead.fetch(kLines);
    const int j = 32 * step + 2 * i;
    const T* zeros = reinterpret_cast<const T*>(kZeros);
    const T* even = keys.has(j) ? keys.value(j) : zeros;
    const T* odd = keys.has(j + 1) ? keys.value(j + 1) : zeros;
    for (int d = 0; d < w.dim_steps; ++d) {
      const __m512i x = load_bf16(even + 32 * d), y = load_bf16(odd + 32 * d);
      _mm512_store_si512(v[2 * d] + kSide * i, _mm512_unpacklo_epi16(x, y));
      _mm512_store_si512(v[2 * d + 1] + kSide * i, _mm512_unpackhi_epi16(x, y));
    }
  }
}

template <int Slabs>
QUIRE_ONCE inline void add_values(Work& w, State& state, int slab, int step, int end,
                                  const uint32_t (*v)[kDimTiles][kCells], Ahead& ahead) {
  for (int d = 0; d < w.dim_tiles; d += 2) {
    float* acc = state.acc[slab][d];
    float* below = state.acc[slab + Slabs - 1][d];
    if (state.empty) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (Slabs == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      QUIRE_TILE_LOAD(0, acc, 64);
      QUIRE_TILE_LOAD(1, acc + kCells, 64);
      if constexpr (Slabs == 2) {
        QUIRE_TILE_LOAD(2, below, 64);
        QUIRE_TILE_LOAD(3, below + kCells, 64);
      }
    }
    for (int i = step; i < end; ++i) {
      ahead.fetch(kLines);
      ahead.fetch(kLines);
      QUIRE_TILE_LOAD(4, w.weights[slab][i], 64);
      QUIRE_TILE_LOAD(6, v[i - step][d], 64);
      QUIRE_TILE_LOAD(7, v[i - step][d + 1], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (Slabs == 2) {
        QUIRE_TILE_LOAD(5, w.weights[slab + 1][i], 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, acc, 64);
    _tile_stored(1, acc + kCells, 64);
    if constexpr (Slabs == 2) {
      _tile_stored(2, below, 64);
      _tile_stored(3, below + kCells, 64);
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
