// Attention on AMX tiles: weights times values.
#pragma once

#include "attention_amx.h"

namespace quire::QUIRE_ISA {
namespace {

// Pairs of the values of two keys, interleaved: 32 columns in two vectors, 0-3, 8-11, ... and 4-7, 12-15,
// ... The vectors of `Columns` times 32 columns are kCells apart.
template <int Columns, class T>
inline void interleave(const T* even, const T* odd, uint32_t* to) {
  for (int c = 0; c < Columns; ++c, to += 2 * kCells) {
    const __m512i x = load_bf16(even + 32 * c), y = load_bf16(odd + 32 * c);
    _mm512_store_si512(to, _mm512_unpacklo_epi16(x, y));
    _mm512_store_si512(to + kCells, _mm512_unpackhi_epi16(x, y));
  }
}
template <int Columns, class F8>
  requires(Columns == 2 && !__is_same(F8, bf16) && !kWholeNumbers<F8>)
inline void interleave(const F8* even, const F8* odd, uint32_t* to) {
  const Float8Pairs<F8> pairs;
  const __m512i x = load_codes(even), y = load_codes(odd);
  __m512i v[4];
  pairs.widen(_mm512_unpacklo_epi8(x, y), v[0], v[1]);
  pairs.widen(_mm512_unpackhi_epi8(x, y), v[2], v[3]);
  for (int i = 0; i < 4; ++i) _mm512_store_si512(to + i * kCells, v[i]);
}

// Calls put(i, even, odd) with the values of keys 2i and 2i + 1 of a step of 32, for i in [0, 16);
// missing keys are 0.
template <class T, class Put>
inline void each_pair(const Keys<T>& keys, int step, const Put& put) {
  constexpr int kRun = 8;  // keys that follow each other in any block
  if (keys.first <= 32 * step && 32 * step + 32 <= keys.last) {
    for (int i = 0; i < 32; i += kRun) {
      const T* const v = keys.value(32 * step + i);
      for (int n = 0; n < kRun; n += 2) put((i + n) / 2, v + n * keys.dim, v + (n + 1) * keys.dim);
    }
    return;
  }
  const T* const zeros = reinterpret_cast<const T*>(kZeros);
  for (int i = 0; i < kSide; ++i) {
    const int j = 32 * step + 2 * i;
    put(i, keys.has(j) ? keys.value(j) : zeros, keys.has(j + 1) ? keys.value(j + 1) : zeros);
  }
}

// Interleaves the values of steps [step, end) in Columns x 32 columns, from step d of columns on.
template <int Columns, class T>
QUIRE_ONCE void pack_values(Work& w, const Keys<T>& keys, int step, int end, int d, Ahead& ahead) {
  for (int i = step; i < end; ++i) {
    each_pair(keys, i, [&](int n, const T* even, const T* odd) {
      ahead.fetch(kLines);
      interleave<Columns>(even + 32 * d, odd + 32 * d, w.v[i][0] + kSide * n);
    });
  }
}

// Adds them to the sums of one or two slabs; 32 columns at a time, `c` is their place in w.v.
template <int Slabs>
QUIRE_ONCE inline void add_values(Work& w, State& state, int slab, int d, int c, int step, int end) {
  float* const acc = state.acc[slab][2 * d];
  float* const below = state.acc[slab + Slabs - 1][2 * d];
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
    QUIRE_TILE_LOAD(4, w.weights[slab][i], 64);
    QUIRE_TILE_LOAD(6, w.v[i][2 * c], 64);
    _tile_dpbf16ps(0, 4, 6);
    QUIRE_TILE_LOAD(7, w.v[i][2 * c + 1], 64);
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

// The values of Columns x 32 columns for all slabs, of those keys of steps `all` that they see: so many
// columns stay in the L1 cache.
template <int Columns, class T>
void add_columns(Work& w, State& state, const Keys<T>& keys, int d, Steps all, Ahead& ahead) {
  pack_values<Columns>(w, keys, all.begin, all.end, d, ahead);
  for (int c = 0; c < Columns; ++c) {
    for (int slab = 0; slab < w.slabs; slab += 2) {
      const Steps steps = w.seen[slab / 2];
      if (steps.none() && !state.empty) continue;  // empty sums become 0
      if (slab + 1 < w.slabs) {
        add_values<2>(w, state, slab, d + c, c, steps.begin, steps.end);
      } else {
        add_values<1>(w, state, slab, d + c, c, steps.begin, steps.end);
      }
    }
  }
}

// Adds the values of the keys of steps [step, end) to Columns x 32 columns of few rows' sums, from step d
// of columns on. A step's values are interleaved while the ones before are multiplied: a tile must wait
// for what it reads to be stored.
template <int Columns, class T>
void add_few_columns(Work& w, State& state, const Keys<T>& keys, int slab, int d, int step, int end,
                     Ahead& ahead) {
  const auto pack = [&](int i) {
    uint32_t(*const to)[kCells] = w.v[i % 2];
    each_pair(keys, i, [&](int n, const T* even, const T* odd) {
      if (n % (8 / (Columns * static_cast<int>(sizeof(T)))) == 0) ahead.fetch(kLines);
      interleave<Columns>(even + 32 * d, odd + 32 * d, to[0] + kSide * n);
    });
  };
  float* const acc = state.acc[slab][2 * d];
  if (state.empty) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    QUIRE_TILE_LOAD(0, acc, 64);
    QUIRE_TILE_LOAD(1, acc + kCells, 64);
    if constexpr (Columns == 2) {
      QUIRE_TILE_LOAD(2, acc + 2 * kCells, 64);
      QUIRE_TILE_LOAD(3, acc + 3 * kCells, 64);
    }
  }
  pack(step);
  for (int i = step; i < end; ++i) {
    if (i + 1 < end) pack(i + 1);
    const uint32_t(*const v)[kCells] = w.v[i % 2];
    QUIRE_TILE_LOAD(4, w.weights[slab][i], 64);
    QUIRE_TILE_LOAD(6, v[0], 64);
    _tile_dpbf16ps(0, 4, 6);
    QUIRE_TILE_LOAD(7, v[1], 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (Columns == 2) {
      QUIRE_TILE_LOAD(6, v[2], 64);
      _tile_dpbf16ps(2, 4, 6);
      QUIRE_TILE_LOAD(7, v[3], 64);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, acc, 64);
  _tile_stored(1, acc + kCells, 64);
  if constexpr (Columns == 2) {
    _tile_stored(2, acc + 2 * kCells, 64);
    _tile_stored(3, acc + 3 * kCells, 64);
  }
}

template <class T>
QUIRE_ONCE void add_few(Work& w, State& state, const Keys<T>& keys, int slab, int step, int end,
                        Ahead& ahead) {
  int d = 0;
  for (; d + 2 <= w.dim_steps; d += 2) add_few_columns<2>(w, state, keys, slab, d, step, end, ahead);
  if (d < w.dim_steps) add_few_columns<1>(w, state, keys, slab, d, step, end, ahead);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
