// Products of attention by instructions that multiply pairs of 16-bit numbers, at twice the rate of
// floats. Keys and values in bfloat16 have queries and weights in bfloat16. Those in int8 use integers,
// with queries and weights rounded to 16 bits of the largest in their row (and tile).
#pragma once

#include "attention_floats.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define QUIRE_PAIRS

namespace quire::QUIRE_ISA {
namespace {

inline void unpack_both(__m512i even, __m512i odd, __m512i* x) {
  x[0] = _mm512_unpacklo_epi16(even, odd);
  x[1] = _mm512_unpackhi_epi16(even, odd);
}

// Two neighbours, in every lane.
template <class E>
__m512i pair_at(const E* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// By the element of queries and weights; sums are vectors of what `plus` adds and `floats` converts.
// `interleave` makes pairs of two keys' values, kInterleaved vectors of columns.
template <class E>
struct Pairs;

template <>
struct Pairs<bf16> {
  static __m512i load(const bf16* p) { return _mm512_loadu_si512(p); }
  static Vec dot(Vec s, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static Vec plus(Vec a, Vec b) { return add(a, b); }
  static Vec floats(Vec s) { return s; }
  static void interleave(const bf16* even, const bf16* odd, __m512i* x) {
    unpack_both(load(even), load(odd), x);
  }
};

// Integers: at most 256 products of 127 and 32767, so no sum overflows.
template <>
struct Pairs<int16_t> {
  static __m512i load(const int16_t* p) { return _mm512_loadu_si512(p); }
  static __m512i load(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec dot(Vec s, __m512i a, __m512i b) {
    return _mm512_castsi512_ps(_mm512_dpwssd_epi32(_mm512_castps_si512(s), a, b));
  }
  static Vec plus(Vec a, Vec b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static Vec floats(Vec s) { return _mm512_cvtepi32_ps(_mm512_castps_si512(s)); }
  static void interleave(const int8_t* even, const int8_t* odd, __m512i* x) {
    unpack_both(load(even), load(odd), x);
  }
};

template <class T>
struct PairOf;  // the element for a cache of T
template <>
struct PairOf<bf16> {
  using Element = bf16;
};
template <>
struct PairOf<int8_t> {
  using Element = int16_t;
};

// What `fold` and `join` do, with the sums of P.
template <class P>
Vec fold_sums(const Vec* v) {
  const Vec a = P::plus(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const Vec b = P::plus(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  return P::plus(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}
template <class P>
Vec join_sums(const Vec* folded) {
  const Vec a = P::plus(_mm512_shuffle_f32x4(folded[0], folded[1], 0x44),
                        _mm512_shuffle_f32x4(folded[0], folded[1], 0xee));
  const Vec b = P::plus(_mm512_shuffle_f32x4(folded[2], folded[3], 0x44),
                        _mm512_shuffle_f32x4(folded[2], folded[3], 0xee));
  return P::plus(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Whether these products compute the shape; `columns` is what they take at once.
inline bool fits_pairs(const AttentionArgs& a, int64_t columns) {
  return a.q_dtype == kBFloat16 && a.head_dim % columns == 0;
}

// Rounds x to 16 bits of `top`, the largest magnitude; returns what one unit is worth.
inline float unit_of(float top) { return top * (1.0f / 32767.0f); }
inline float units_in(float top) { return top > 1e-33f ? 32767.0f / top : 0.0f; }
inline void store_units(int16_t* to, Vec x, Vec units) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(mul(x, units))));
}

// One query row; returns what its scores are to be multiplied by: NaN if an element is not finite.
inline float load_query(const bf16* from, int64_t dim, bf16* q) {
  __builtin_memcpy(q, from, static_cast<uint64_t>(2 * dim));
  return 1.0f;
}
template <class Q>
float load_query(const Q* from, int64_t dim, int16_t* q) {
  Vec top = zero(), nothing = zero();
  for (int64_t d = 0; d < dim; d += kLanes) {
    const Vec x = load(from + d);
    top = max(top, abs(x));
    nothing = fma(x, zero(), nothing);
  }
  const float most = largest(top);
  const Vec units = broadcast(units_in(most));
  for (int64_t d = 0; d < dim; d += kLanes) store_units(q + d, load(from + d), units);
  return unit_of(most) + sum(nothing);
}

// scores[r][j] = q[r] . k[j], of int8 times the key's scale, for the groups of keys [begin, end).
template <int R, class E, class T>
void score(const E* q, const Keys<T>& keys, const Scales* scales, Ahead& ahead, int begin, int end,
           float* scores) {
  const int64_t dim = keys.dim;
  using P = Pairs<E>;
  for (int j = begin; j < end; j += kGroup) {
    Vec folded[R][kGroup / 4];
    for (int i = 0; i < kGroup; i += 4) {
      ahead.fetch(ahead.pace);
      const T* const k = keys.key(j + i);
      Vec s[R][4];
      for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();
      for (int64_t d = keys.has_block(j + i) ? 0 : dim; d < dim; d += 32) {
        __m512i y[R];
        QUIRE_UNROLL for (int r = 0; r < R; ++r) y[r] = _mm512_loadu_si512(q + r * kWidth + d);
        QUIRE_UNROLL for (int c = 0; c < 4; ++c) {
          const __m512i x = P::load(k + c * dim + d);
          QUIRE_UNROLL for (int r = 0; r < R; ++r) s[r][c] = P::dot(s[r][c], y[r], x);
        }
      }
      for (int r = 0; r < R; ++r) folded[r][i / 4] = fold_sums<P>(s[r]);
    }
    for (int r = 0; r < R; ++r) {
      const Vec score = P::floats(join_sums<P>(folded[r]));
      store(scores + r * kKeys + j, scales != nullptr ? mul(score, load(scales->k + j)) : score);
    }
  }
}

// Prepares the weights of a row for `add_values`; returns the factor of their products.
QUIRE_ONCE inline float round_weights(const float* weights, int begin, int end, const Scales*, bf16* to) {
  for (int j = begin; j < end; j += kGroup) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load(weights + j))));
  }
  return 1.0f;
}
QUIRE_ONCE inline float round_weights(const float* weights, int begin, int end, const Scales* scales,
                           int16_t* to) {
  alignas(64) float scaled[kKeys];
  Vec top = zero(), nothing = zero();
  for (int j = begin; j < end; j += kGroup) {
    const Vec x = mul(load(weights + j), load(scales->v + j));
    store(scaled + j, x);
    top = max(top, x);
    nothing = fma(x, zero(), nothing);  // NaN if there is one
  }
  const float most = largest(top);
  const Vec units = broadcast(units_in(most));
  for (int j = begin; j < end; j += kGroup) store_units(to + j, load(scaled + j), units);
  return unit_of(most) + sum(nothing);
}

alignas(64) constexpr bf16 kZeros[kAttentionHeadDim] = {};

// Vectors of pairs that `interleave` makes at once.
template <class T>
constexpr int kInterleaved = 2;

// The values of key j, from column d on; zeros if it is not in the tile.
template <class T>
inline const T* value_or_zeros(const Keys<T>& keys, int j, int64_t d) {
  return keys.has(j) ? keys.value(j) + d : reinterpret_cast<const T*>(kZeros);
}

// For R rows and C vectors from column d on: acc[r] += weight[r][j] * v[j], over those of the keys
// [begin, end) that the tile has; with the first of them, acc is multiplied by `keep` before. Sums of
// integers join acc with the last. Every 32 columns of acc have the order of `interleave`; with Ready,
// `values` are its result.
template <int R, int C, bool Ready, class E, class T>
void add_values(const Sums& sums, const E* weights, const Keys<T>& keys, Ahead& ahead,
                const E* values, int begin, int end, int64_t d) {
  using P = Pairs<E>;
  constexpr bool kWhole = kIsInt16<E>;
  const bool first = begin <= keys.first, last = end >= keys.last;
  Vec s[R][C];
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int c = 0; c < C; ++c) {
      const int64_t at = r * kWidth + d + c * kLanes;
      if constexpr (kWhole) {
        s[r][c] = first ? zero() : _mm512_castsi512_ps(_mm512_load_si512(sums.whole + at));
      } else {
        s[r][c] = load(sums.acc + at);
        if (first) s[r][c] = mul(s[r][c], broadcast(sums.keep[r]));
      }
    }
  }
  const int end_key = last ? keys.last : end;
  for (int j = first ? keys.first / 2 * 2 : begin; j < end_key; j += 2) {
    if (j % 4 == 0) ahead.fetch(ahead.pace);
    __m512i x[C];
    if constexpr (Ready) {
      const E* const pairs = values + j * keys.dim + 2 * d;
      for (int c = 0; c < C; ++c) x[c] = P::load(pairs + c * 32);
    } else {
      const T *const even = value_or_zeros(keys, j, d), *const odd = value_or_zeros(keys, j + 1, d);
      QUIRE_UNROLL for (int c = 0; c < C; c += kInterleaved<T>) {
        P::interleave(even + c * kLanes, odd + c * kLanes, x + c);
      }
    }
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      const __m512i weight = pair_at(weights + r * kKeys + j);
      QUIRE_UNROLL for (int c = 0; c < C; ++c) s[r][c] = P::dot(s[r][c], weight, x[c]);
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int c = 0; c < C; ++c) {
      const int64_t at = r * kWidth + d + c * kLanes;
      float* const to = sums.acc + at;
      if constexpr (!kWhole) {
        store(to, s[r][c]);
      } else if (last) {
        const Vec added = mul(P::floats(s[r][c]), broadcast(sums.worth[r]));
        store(to, add(mul(load(to), broadcast(sums.keep[r])), added));
      } else {
        _mm512_store_si512(sums.whole + at, _mm512_castps_si512(s[r][c]));
      }
    }
  }
}

// The weights of R rows times the tile's values.
template <int R, class E, class T>
void add_weighted(const Sums& sums, const E* weights, const Keys<T>& keys, Ahead& ahead, int begin,
                  int end) {
  constexpr int kColumns = R * kInterleaved<T> <= 4 ? 8 : 4;  // as many as registers hold
  const E* const none = nullptr;
  int64_t d = 0;
  for (; d + kColumns * kLanes <= keys.dim; d += kColumns * kLanes) {
    add_values<R, kColumns, false>(sums, weights, keys, ahead, none, begin, end, d);
  }
  for (; d < keys.dim; d += kInterleaved<T> * kLanes) {
    add_values<R, kInterleaved<T>, false>(sums, weights, keys, ahead, none, begin, end, d);
  }
}

// Undoes the order of `add_values`: its vectors hold columns 0-3, 8-11, ... and 4-7, 12-15, ...
inline void order_columns(float* acc, int64_t dim, const void*) {
  const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
  for (int64_t d = 0; d < dim; d += 32) {
    const Vec x = load(acc + d), y = load(acc + d + kLanes);
    store(acc + d, _mm512_permutex2var_ps(x, left, y));
    store(acc + d + kLanes, _mm512_permutex2var_ps(x, right, y));
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA

#endif
