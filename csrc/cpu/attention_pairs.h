// Products of attention by the instructions that multiply pairs of 16-bit numbers, at twice the
// rate of floats: keys and values of bfloat16 with queries and weights of bfloat16; of int8, in
// integers, with queries and weights rounded to 16 bits of the largest of their row (and tile).
#pragma once

#include "attention_floats.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && !defined(QUIRE_TILES)
#define QUIRE_PAIRS

namespace quire::QUIRE_ISA {
namespace {

template <class T>
struct Pairs;

template <>
struct Pairs<bf16> {
  using Element = bf16;
  using Sum = __m512;
  static __m512i load(const bf16* p) { return _mm512_loadu_si512(p); }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum dot(Sum s, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static Vec floats(Sum s) { return s; }
};

template <>
struct Pairs<int8_t> {
  using Element = int16_t;
  using Sum = __m512i;  // at most 256 products of 127 and 32767: it does not overflow
  static __m512i load(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum dot(Sum s, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(s, a, b); }
  static Vec floats(Sum s) { return _mm512_cvtepi32_ps(s); }
};

bool fits_pairs(const AttentionArgs& a) { return a.q_dtype == kBFloat16 && a.head_dim % 32 == 0; }

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
inline float load_query(const bf16* from, int64_t dim, int16_t* q) {
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

// scores[r][j] = q[r] . k[j], of int8 times the key's scale.
template <int R, class T>
void score(const typename Pairs<T>::Element* q, const Keys<T>& keys, const Scales* scales,
           Ahead& ahead, float* scores) {
  const int64_t dim = keys.dim;
  using P = Pairs<T>;
  for (int j = keys.first / kGroup * kGroup; j < keys.last; j += kGroup) {
    Vec part[R][kGroup];
    for (int i = 0; i < kGroup; i += 4) {
      ahead.fetch(ahead.pace);
      const T* const k = keys.key(j + i);
      typename P::Sum s[R][4];
      for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = P::zero();
      for (int64_t d = keys.has_block(j + i) ? 0 : dim; d < dim; d += 32) {
        __m512i x[4];
        for (int c = 0; c < 4; ++c) x[c] = P::load(k + c * dim + d);
        for (int r = 0; r < R; ++r) {
          const __m512i y = _mm512_loadu_si512(q + r * kWidth + d);
          for (int c = 0; c < 4; ++c) s[r][c] = P::dot(s[r][c], y, x[c]);
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < 4; ++c) part[r][i + c] = P::floats(s[r][c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const Vec score = sums(part[r]);
      store(scores + r * kKeys + j, kIsInt8<T> ? mul(score, load(scales->k + j)) : score);
    }
  }
}

// The weights of a row as `add_values` takes them; returns what a product with them is worth.
inline float round_weights(const float* weights, const Scales*, bf16* to) {
  for (int j = 0; j < kKeys; j += kGroup) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load(weights + j))));
  }
  return 1.0f;
}
inline float round_weights(const float* weights, const Scales* scales, int16_t* to) {
  Vec scaled[kKeys / kLanes], top = zero(), nothing = zero();
  for (int i = 0; i < kKeys / kGroup; ++i) {
    scaled[i] = mul(load(weights + i * kGroup), load(scales->v + i * kGroup));
    top = max(top, scaled[i]);
    nothing = fma(scaled[i], zero(), nothing);  // NaN if there is one
  }
  const float most = largest(top);
  const Vec units = broadcast(units_in(most));
  for (int i = 0; i < kKeys / kGroup; ++i) store_units(to + i * kGroup, scaled[i], units);
  return unit_of(most) + sum(nothing);
}

alignas(64) constexpr bf16 kZeros[kAttentionHeadDim] = {};

// acc[r] = acc[r] * keep[r] + sum over keys of weight[r][j] * v[j] for R rows and C vectors from
// column d on. Every 32 columns of acc lie in the order in which `unpack` leaves them.
template <int R, int C, class T>
void add_values(float* acc, const typename Pairs<T>::Element* weights, const float* keep,
                const float* worth, const Keys<T>& keys, Ahead& ahead, int64_t d) {
  using P = Pairs<T>;
  typename P::Sum s[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      if constexpr (kIsInt8<T>) {
        s[r][c] = P::zero();
      } else {
        s[r][c] = mul(load(acc + r * kWidth + d + c * kLanes), broadcast(keep[r]));
      }
    }
  }
  for (int j = keys.first / 2 * 2; j < keys.last; j += 2) {
    if (j % 4 == 0) ahead.fetch(ahead.pace);
    const T* const v = keys.value(j);
    const T* const evens = keys.has(j) ? v : reinterpret_cast<const T*>(kZeros);
    const T* const odds = keys.has(j + 1) ? v + keys.dim : reinterpret_cast<const T*>(kZeros);
    __m512i x[C];
    for (int c = 0; c < C; c += 2) {
      const __m512i even = P::load(evens + d + c * kLanes);
      const __m512i odd = P::load(odds + d + c * kLanes);
      x[c] = _mm512_unpacklo_epi16(even, odd);
      x[c + 1] = _mm512_unpackhi_epi16(even, odd);
    }
    for (int r = 0; r < R; ++r) {
      int pair;
      __builtin_memcpy(&pair, weights + r * kKeys + j, sizeof pair);
      for (int c = 0; c < C; ++c) s[r][c] = P::dot(s[r][c], _mm512_set1_epi32(pair), x[c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      float* to = acc + r * kWidth + d + c * kLanes;
      if constexpr (kIsInt8<T>) {
        const Vec added = mul(P::floats(s[r][c]), broadcast(worth[r]));
        store(to, add(mul(load(to), broadcast(keep[r])), added));
      } else {
        store(to, s[r][c]);
      }
    }
  }
}

// The weights of R rows times the tile's values; the last argument says in which elements.
template <int R, class T>
void add_weighted(float* acc, float* weights, const float* keep, const Keys<T>& keys,
                  const Scales* scales, Ahead& ahead, const typename Pairs<T>::Element*) {
  const int64_t dim = keys.dim;
  alignas(64) typename Pairs<T>::Element rounded[R * kKeys];
  float worth[R];
  for (int r = 0; r < R; ++r) {
    worth[r] = round_weights(weights + r * kKeys, scales, rounded + r * kKeys);
  }
  constexpr int kColumns = R <= 2 ? 8 : 4;
  int64_t d = 0;
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    add_values<R, kColumns>(acc, rounded, keep, worth, keys, ahead, d);
  }
  for (; d < dim; d += 2 * kLanes) {
    add_values<R, 2>(acc, rounded, keep, worth, keys, ahead, d);
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
