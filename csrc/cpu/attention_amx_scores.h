// Attention on AMX tiles: queries times keys.
#pragma once

#include "attention_amx.h"

namespace quire::QUIRE_ISA {
namespace {

// A query row as products with int8 take it: 16-bit multiples of a unit, 64 upper bytes, then the 64 lower
// ones, and so on. Returns what one unit is worth: NaN if an element is not finite.
QUIRE_ONCE inline float split_row(const AttentionArgs& a, const bf16* from, uint8_t* to) {
  alignas(64) float row[kAttentionHeadDim];
  Vec top = zero(), nothing = zero();
  for (int64_t d = 0; d < a.head_dim; d += kLanes) store(row + d, load(from + d));
  if (a.packed) rotate(row, a.head_dim);
  for (int64_t d = 0; d < a.head_dim; d += kLanes) {
    const Vec x = load(row + d);
    top = max(top, abs(x));
    nothing = fma(x, zero(), nothing);
  }
  const float most = largest(top);
  const Vec units = broadcast(most > 1e-33f ? 32767.0f / most : 0.0f);
  for (int64_t d = 0; d < a.head_dim; d += kLanes) {
    const __m512i x = _mm512_cvtps_epi32(mul(load(row + d), units));
    auto* const at = reinterpret_cast<__m128i*>(to + d / 64 * 128 + d % 64);
    _mm_storeu_si128(at, _mm512_cvtepi32_epi8(_mm512_srai_epi32(x, 8)));
    _mm_storeu_si128(at + 4, _mm512_cvtepi32_epi8(x));
  }
  return most * (1.0f / 32767.0f) + sum(nothing);
}

alignas(64) constexpr uint8_t kNoQuery[2 * kAttentionHeadDim] = {};

// The queries of a slab, to be multiplied by keys of T.
template <class T>
QUIRE_ONCE void pack_queries(const AttentionArgs& a, int64_t offset, Work& w, int slab) {
  alignas(64) uint8_t room[kWholeNumbers<T> ? kSide : 1][2 * kAttentionHeadDim];
  const uint8_t* rows[kSide];
  const int steps = kWholeNumbers<T> ? (w.dim_steps + 1) / 2 * 2 : w.dim_steps;
  float* const worth = w.worth + slab * kSide;
  for (int i = 0; i < kSide; ++i) {
    const int r = w.few() ? i : slab * kSide + i;
    worth[i] = 1.0f;
    rows[i] = kNoQuery;
    if (r >= w.rows) continue;
    const bf16* const from =
        static_cast<const bf16*>(a.q) + offset + row_offset(w, r, a.q_stride, a.head_dim);
    rows[i] = reinterpret_cast<const uint8_t*>(from);
    if constexpr (kWholeNumbers<T>) {
      __builtin_memset(room[i] + 64 * (steps - 2), 0, 128);
      worth[i] = split_row(a, from, room[i]);
      rows[i] = room[i];
    }
  }
  for (int step = 0; step < steps; ++step) {
    __m512i lines[kSide];
    for (int i = 0; i < kSide; ++i) lines[i] = _mm512_loadu_si512(rows[i] + 64 * step);
    transpose(lines, w.q[slab][step]);
  }
  for (int i = w.lanes; i < kSide; ++i) worth[i] = worth[i - w.lanes];  // each key's lanes repeat them
}

// 16 keys as a tile, and the bytes from one to the next: in place, or copied together where they are
// to be converted or blocks are shorter. Keys outside the tile hold anything; their scores are hidden.
struct KeyRows {
  const uint8_t* at;
  int64_t stride;
};

template <class F8>
inline void widen_row(const F8* from, int64_t dim, bf16* to) {
  const Float8Pairs<F8> pairs;
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64) {
    __m512i x, y;
    pairs.widen(load_codes(from + d), x, y);
    _mm512_storeu_si512(to + d, x);
    _mm512_storeu_si512(to + d + 32, y);
  }
  if (d < dim) _mm512_storeu_si512(to + d, load_bf16(from + d));
}

template <class T>
inline KeyRows key_rows(const Keys<T>& keys, int tile, uint8_t* room) {
  constexpr bool kPlain = kWholeNumbers<T> || sizeof(T) == 2;
  const int64_t bytes = kWholeNumbers<T> ? (keys.dim + 63) / 64 * 64 : 2 * keys.dim;
  const int64_t own = keys.dim * static_cast<int64_t>(sizeof(T));
  const int j = tile * kSide;
  if (kPlain && keys.shift >= 4 && bytes == own) {
    return {reinterpret_cast<const uint8_t*>(keys.key(j)), bytes};
  }
  for (int i = 0; i < kSide; ++i) {
    if (!keys.has(j + i)) continue;
    if constexpr (kPlain) {
      __builtin_memcpy(room + i * bytes, keys.key(j + i), static_cast<uint64_t>(own));
    } else {
      widen_row(keys.key(j + i), keys.dim, reinterpret_cast<bf16*>(room + i * bytes));
    }
  }
  return {room, bytes};
}

// Scores of KeyTiles x Slabs tiles (1 or 2 each).
template <int KeyTiles, int Slabs>
QUIRE_ONCE inline void score_floats(Work& w, const KeyRows* k, int slab, int tile) {
  _tile_zero(0);
  if constexpr (KeyTiles == 2) _tile_zero(1);
  if constexpr (Slabs == 2) _tile_zero(2);
  if constexpr (KeyTiles == 2 && Slabs == 2) _tile_zero(3);
  for (int step = 0; step < w.dim_steps; ++step) {
    QUIRE_TILE_LOAD(4, k[0].at + 64 * step, k[0].stride);
    QUIRE_TILE_LOAD(6, w.q[slab][step], 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (KeyTiles == 2) {
      QUIRE_TILE_LOAD(5, k[1].at + 64 * step, k[1].stride);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (Slabs == 2) {
      QUIRE_TILE_LOAD(7, w.q[slab + 1][step], 64);
      _tile_dpbf16ps(2, 4, 7);
      if constexpr (KeyTiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  float* const s = w.scores[0] + tile * kCells;
  float* const below = w.scores[1] + tile * kCells;
  _tile_stored(0, s, 64);
  if constexpr (KeyTiles == 2) _tile_stored(1, s + kCells, 64);
  if constexpr (Slabs == 2) _tile_stored(2, below, 64);
  if constexpr (KeyTiles == 2 && Slabs == 2) _tile_stored(3, below + kCells, 64);
}

// The same with int8 keys, for one slab.
template <int KeyTiles>
QUIRE_ONCE inline void score_integers(Work& w, const KeyRows* k, int slab, int tile) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (KeyTiles == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int step = 0; step < w.dim_steps; step += 2) {
    QUIRE_TILE_LOAD(4, k[0].at + 32 * step, k[0].stride);
    QUIRE_TILE_LOAD(6, w.q[slab][step], 64);
    _tile_dpbssd(0, 4, 6);
    QUIRE_TILE_LOAD(7, w.q[slab][step + 1], 64);
    _tile_dpbsud(1, 4, 7);
    if constexpr (KeyTiles == 2) {
      QUIRE_TILE_LOAD(5, k[1].at + 32 * step, k[1].stride);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  float* const upper = w.scores[0] + tile * kCells;
  int32_t* const lower = w.lower[0] + tile * kCells;
  _tile_stored(0, upper, 64);
  _tile_stored(1, lower, 64);
  if constexpr (KeyTiles == 2) {
    _tile_stored(2, upper + kCells, 64);
    _tile_stored(3, lower + kCells, 64);
  }
}

// Slabs whose scores are computed before their weights. With int8 keys more scores would not stay in L1.
template <class T>
constexpr int kSlabsAtOnce = kWholeNumbers<T> ? 1 : 2;

// Scores of the tiles of keys [first, last) and `slabs` slabs, at most kSlabsAtOnce, from `slab` on.
template <class T>
void score_tiles(Work& w, const KeyRows* k, int slab, int slabs, int first, int last) {
  for (int tile = first; tile < last; tile += 2) {
    const bool two = tile + 1 < last;
    if constexpr (kWholeNumbers<T>) {
      if (two) score_integers<2>(w, k + tile, slab, tile);
      if (!two) score_integers<1>(w, k + tile, slab, tile);
    } else if (slabs == 2) {
      if (two) score_floats<2, 2>(w, k + tile, slab, tile);
      if (!two) score_floats<1, 2>(w, k + tile, slab, tile);
    } else {
      if (two) score_floats<2, 1>(w, k + tile, slab, tile);
      if (!two) score_floats<1, 1>(w, k + tile, slab, tile);
    }
  }
}

// Scores of one or two tiles of keys and few rows.
template <class T, int KeyTiles>
QUIRE_ONCE void score_few(Work& w, const KeyRows* k, int slab, int tile, Ahead& ahead) {
  const int64_t cells = kSide * w.lanes, stride = 4 * w.lanes;
  float* const s = w.scores[slab] + tile * cells;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kWholeNumbers<T>) {
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < w.dim_steps; step += 2) {
      for (int i = 0; i < KeyTiles * static_cast<int>(sizeof(T)); ++i) ahead.fetch(2 * kLines);
      QUIRE_TILE_LOAD(4, k[0].at + 32 * step, k[0].stride);
      QUIRE_TILE_LOAD(6, w.q[slab][step], 64);
      _tile_dpbssd(0, 4, 6);
      QUIRE_TILE_LOAD(7, w.q[slab][step + 1], 64);
      _tile_dpbsud(2, 4, 7);
      if constexpr (KeyTiles == 2) {
        QUIRE_TILE_LOAD(5, k[1].at + 32 * step, k[1].stride);
        _tile_dpbssd(1, 5, 6);
        _tile_dpbsud(3, 5, 7);
      }
    }
    int32_t* const lower = w.lower[slab] + tile * cells;
    _tile_stored(2, lower, stride);
    if constexpr (KeyTiles == 2) _tile_stored(3, lower + cells, stride);
  } else {
    for (int step = 0; step < w.dim_steps; ++step) {
      for (int i = 0; i < KeyTiles * static_cast<int>(sizeof(T)); ++i) ahead.fetch(kLines);
      QUIRE_TILE_LOAD(4, k[0].at + 64 * step, k[0].stride);
      QUIRE_TILE_LOAD(6, w.q[slab][step], 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (KeyTiles == 2) {
        QUIRE_TILE_LOAD(5, k[1].at + 64 * step, k[1].stride);
        _tile_dpbf16ps(1, 5, 6);
      }
    }
  }
  _tile_stored(0, s, stride);
  if constexpr (KeyTiles == 2) _tile_stored(1, s + cells, stride);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
