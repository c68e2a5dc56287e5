// Attention on AMX tiles: queries times keys, and scores to weights.
#pragma once

#include "attention_amx.h"

namespace quire::QUIRE_ISA {
namespace {

// Rotates one query row (int4.h).
QUIRE_ONCE inline void rotate_query(const bf16* from, int64_t dim, bf16* to) {
  alignas(64) float row[kAttentionHeadDim];
  for (int64_t d = 0; d < dim; d += kLanes) store(row + d, load(from + d));
  rotate(row, dim);
  for (int64_t d = 0; d < dim; d += kLanes) store(to + d, load(row + d));
}

QUIRE_ONCE inline void pack_queries(const AttentionArgs& a, int64_t offset, Work& w) {
  const bf16* rows_at[kAttentionRows];
  alignas(64) bf16 rotated[kAttentionRows * kAttentionHeadDim];
  for (int r = 0; r < w.rows; ++r) {
    rows_at[r] = static_cast<const bf16*>(a.q) + offset + row_offset(w, r, a.q_stride, a.head_dim);
    if (!a.packed) continue;
    bf16* const to = rotated + r * kAttentionHeadDim;
    rotate_query(rows_at[r], a.head_dim, to);
    rows_at[r] = to;
  }
  for (int slab = 0; slab < w.slabs; ++slab) {
    for (int step = 0; step < w.dim_steps; ++step) {
      __m512i rows[kSide];
      for (int i = 0; i < kSide; ++i) {
        const int r = slab * kSide + i;
        rows[i] = r < w.rows ? _mm512_loadu_si512(rows_at[r] + 32 * step) : _mm512_setzero_si512();
      }
      transpose(rows, w.q[slab][step]);
    }
  }
}

// 16 keys as a tile: in place, or copied together where blocks are shorter.
template <class T>
inline const bf16* key_rows(const Keys<T>& keys, int tile, bf16* room) {
  for (int i = 0; i < kSide; ++i) {
    const int j = tile * kSide + i;
    if (!keys.has(j)) continue;  // whose scores are hidden
    for (int64_t d = 0; d < keys.dim; d += 32) {
      _mm512_store_si512(room + i * keys.dim + d, load_bf16(keys.key(j) + d));
    }
  }
  return room;
}
inline const bf16* key_rows(const Keys<bf16>& keys, int tile, bf16* room) {
  const int j = tile * kSide;
  if (keys.shift >= 4) return keys.key(j);
  for (int half = 0; half < 2; ++half) {
    const bf16* block = keys.k[2 * tile + half];
    if (block != nullptr) {
      __builtin_memcpy(room + half * 8 * keys.dim, block, static_cast<uint64_t>(16 * keys.dim));
    }
  }
  return room;
}

// Scores of KeyTiles x Slabs tiles (1 or 2 each).
template <int KeyTiles, int Slabs>
QUIRE_ONCE inline void score_tiles(const bf16* k0, const bf16* k1, int64_t dim, int steps,
                                   const uint32_t (*q0)[kCells], const uint32_t (*q1)[kCells],
                                   float* s00, float* s10, float* s01, float* s11, Ahead& ahead) {
  _tile_zero(0);
  if constexpr (KeyTiles == 2) _tile_zero(1);
  if constexpr (Slabs == 2) _tile_zero(2);
  if constexpr (KeyTiles == 2 && Slabs == 2) _tile_zero(3);
  const int64_t stride = 2 * dim;
  for (int step = 0; step < steps; ++step) {
    ahead.fetch(kLines);
    QUIRE_TILE_LOAD(4, k0 + 32 * step, stride);
    QUIRE_TILE_LOAD(6, q0[step], 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (KeyTiles == 2) {
      QUIRE_TILE_LOAD(5, k1 + 32 * step, stride);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (Slabs == 2) {
      QUIRE_TILE_LOAD(7, q1[step], 64);
      _tile_dpbf16ps(2, 4, 7);
      if constexpr (KeyTiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, s00, 64);
  if constexpr (KeyTiles == 2) _tile_stored(1, s10, 64);
  if constexpr (Slabs == 2) _tile_stored(2, s01, 64);
  if constexpr (KeyTiles == 2 && Slabs == 2) _tile_stored(3, s11, 64);
}

template <int KeyTiles, class T>
inline void score(Work& w, const Keys<T>& keys, int tile, Ahead& ahead) {
  const bf16* k0 = key_rows(keys, tile, w.k[0]);
  const bf16* k1 = KeyTiles == 2 ? key_rows(keys, tile + 1, w.k[1]) : k0;
  const int j = tile * kSide;
  const int next = KeyTiles == 2 ? j + kSide : j;
  int slab = 0;
  for (; slab + 2 <= w.slabs; slab += 2) {
    score_tiles<KeyTiles, 2>(k0, k1, keys.dim, w.dim_steps, w.q[slab], w.q[slab + 1],
                             w.scores[slab][j], w.scores[slab][next], w.scores[slab + 1][j],
                             w.scores[slab + 1][next], ahead);
  }
  if (slab < w.slabs) {
    score_tiles<KeyTiles, 1>(k0, k1, keys.dim, w.dim_steps, w.q[slab], w.q[slab], w.scores[slab][j],
                             w.scores[slab][next], nullptr, nullptr, ahead);
  }
}

// Multiplies the scores of a slab's keys [j, end) by the scales of the keys.
QUIRE_ONCE inline void scale_scores(Work& w, int slab, const Scales& scales, int j, int end) {
  for (; j < end; ++j) {
    float* s = w.scores[slab][j];
    store(s, mul(load(s), broadcast(scales.k[j])));
  }
}

// Replaces the scores s of a slab's keys [j, end) by tanh(scale · s).
QUIRE_ONCE inline void cap_scores(Work& w, int slab, float scale, int j, int end) {
  for (; j < end; ++j) {
    float* s = w.scores[slab][j];
    store(s, tanh(mul(load(s), broadcast(scale))));
  }
}

// Hides the keys [j, end) of a slab that its rows may not see.
template <class T>
QUIRE_ONCE inline void hide(Work& w, int slab, int64_t start, const Keys<T>& keys, int j,
                            int end) {
  const int first = static_cast<int>(start);
  const __m512i origin = _mm512_set1_epi32(first);
  const __m512i at = _mm512_sub_epi32(_mm512_load_si512(w.at + slab * kSide), origin);
  const __m512i high = _mm512_min_epi32(_mm512_add_epi32(at, _mm512_set1_epi32(w.ahead)),
                                        _mm512_set1_epi32(w.last - first));
  const __m512i low = _mm512_sub_epi32(_mm512_load_si512(w.first + slab * kSide), origin);
  const int lowest = _mm512_reduce_min_epi32(high), highest = _mm512_reduce_max_epi32(low);
  const int computed = (keys.last + kSide - 1) / kSide * kSide;
  const int begun = keys.first / kSide * kSide;
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  for (; j < end; ++j) {
    if (j <= lowest && j >= highest && j >= begun && j < computed) continue;
    const __m512i key = _mm512_set1_epi32(j);
    const __mmask16 seen =
        _mm512_cmple_epi32_mask(key, high) & _mm512_cmpge_epi32_mask(key, low);
    float* s = w.scores[slab][j];
    _mm512_store_ps(s, _mm512_mask_mov_ps(hidden, seen, _mm512_load_ps(s)));
  }
}

// Scores of one slab to weights, over keys of steps [step, end).
QUIRE_ONCE inline void weigh(Work& w, int slab, const Scales* scales, State& state, float scale,
                             int step, int end, Ahead& ahead) {
  const float(*scores)[kSide] = w.scores[slab];
  Vec m0 = broadcast(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  for (int j = 32 * step; j < 32 * end; j += 4) {
    m0 = max(load(scores[j]), m0);
    m1 = max(load(scores[j + 1]), m1);
    m2 = max(load(scores[j + 2]), m2);
    m3 = max(load(scores[j + 3]), m3);
  }
  const Vec s = broadcast(scale);
  const Vec old_top = load(state.top + slab * kSide);
  const Vec new_top = max(mul(max(max(m0, m1), max(m2, m3)), s), old_top);
  const Vec shift = sub(zero(), new_top);
  const __m512i half = _mm512_set1_epi32(0x8000);
  Vec even = zero(), odd = zero();
  for (; step < end; ++step) {
    __m512i pairs[kSide];
    for (int i = 0; i < kSide; ++i) {
      if (i % 2 == 0) ahead.fetch(kLines);
      const int j = 32 * step + 2 * i;
      Vec x = exp2(fma(load(scores[j]), s, shift));
      Vec y = exp2(fma(load(scores[j + 1]), s, shift));
      even = add(even, x);
      odd = add(odd, y);
      if (scales != nullptr) {
        x = mul(x, broadcast(scales->v[j]));
        y = mul(y, broadcast(scales->v[j + 1]));
      }
      // Rounded to bfloat16, ties up: weights are not negative, and a NaN stays one.
      const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(x), half), 16);
      const __m512i high = _mm512_add_epi32(_mm512_castps_si512(y), half);
      pairs[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, low, high);
    }
    transpose(pairs, w.weights[slab][step]);
  }
  const Vec keep = exp2(sub(old_top, new_top));
  store(state.top + slab * kSide, new_top);
  store(state.sum + slab * kSide,
        add(mul(load(state.sum + slab * kSide), keep), add(even, odd)));
  if (state.empty) return;
  unsigned changed = _mm512_cmp_ps_mask(keep, broadcast(1.0f), _CMP_NEQ_UQ);
  alignas(64) float factor[kSide];
  store(factor, keep);
  for (; changed != 0; changed &= changed - 1) {
    const int i = __builtin_ctz(changed);
    for (int d = 0; d < w.dim_tiles; ++d) {
      float* acc = state.acc[slab][d] + i * kSide;
      store(acc, mul(load(acc), broadcast(factor[i])));
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
