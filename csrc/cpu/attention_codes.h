// Products of attention for an int4 cache without VNNI. Queries are rounded to 8 bits of the largest in
// their row, weights times scales to 10 bits of the largest in their row and tile. So all sums of a
// tile are integers below 2^24: exact, in floats too and in any order. AVX2 multiplies codes as it
// reads them, if few rows need them. Else they are unpacked before, and products are in floats.
#pragma once

#include "attention_floats.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr float kQueryUnits = 127.0f, kWeightUnits = 1023.0f;
static_assert(1023 * 127 * kKeys < 1 << 24 && 127 * 127 * kWidth < 1 << 24);

alignas(64) constexpr float kOnes[4] = {1.0f, 1.0f, 1.0f, 1.0f};

// Divides `count` numbers, a multiple of the lanes, by largest / units and rounds them; returns that
// divisor: NaN if an element is not finite.
QUIRE_ONCE inline float round_to_units(float* x, int64_t count, float units) {
  Vec top = zero(), nothing = zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec v = load(x + i);
    top = max(top, abs(v));
    nothing = fma(v, zero(), nothing);
  }
  const float most = largest(top);
  const Vec factor = broadcast(most > 1e-33f ? units / most : 0.0f);
  const Vec whole = broadcast(0x1.8p23f);  // added and subtracted: to the nearest integer
  for (int64_t i = 0; i < count; i += kLanes) {
    store(x + i, sub(fma(load(x + i), factor, whole), whole));
  }
  return most / units + sum(nothing);
}

// acc = acc · keep + sums · worth, of one row.
inline void join_tile(float* acc, const float* sums, int64_t dim, float keep, float worth) {
  for (int64_t d = 0; d < dim; ++d) acc[d] = acc[d] * keep + sums[d] * worth;
}

#if defined(__AVX2__) && !defined(__AVX512F__)

// Whether codes are multiplied as they are.
inline bool multiplies_codes(int64_t dim) { return dim % 64 == 0; }

inline __m256i load_codes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline __m256i level_table(const void* levels) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(levels)));
}

// A row of queries as `score_codes` reads it: of 64 elements the even ones, then the odd ones.
inline void order_query(const float* q, int64_t dim, int8_t* to) {
  for (int64_t d = 0; d < dim; d += 64) {
    for (int64_t i = 0; i < 32; ++i) {
      to[d + i] = static_cast<int8_t>(q[d + 2 * i]);
      to[d + 32 + i] = static_cast<int8_t>(q[d + 2 * i + 1]);
    }
  }
}

// Adds the products of q and size with signs of -1 or 1, four neighbours to a lane.
inline __m256i add_products(__m256i sum, __m256i q, __m256i size, __m256i sign) {
  const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(q, sign));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// scores[r][j] = q[r] . k[j] times the key's scale, for the groups of keys [begin, end).
template <int R>
void score_codes(const int8_t* q, const Keys<int8_t>& keys, const Scales& scales, Ahead& ahead,
                 int begin, int end, float* scores) {
  const __m256i sizes = level_table(kKeySizes);
  const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi8(1);
  const __m256i byte_of = _mm256_setr_epi64x(0x0101010100000000, 0x0303030302020202,
                                             0x0505050504040404, 0x0707070706060606);
  const __m256i even_bit = _mm256_set1_epi32(0x40100401);
  const __m256i odd_bit = _mm256_set1_epi32(static_cast<int>(0x80200802));
  for (int j = begin; j < end; j += kGroup) {
    Vec sums[R][kGroup];
    const int8_t* k = keys.key(j);
    const uint8_t* signs = keys.signs(j);
    for (int i = 0; i < kGroup; ++i, k += keys.row, signs += keys.row / 4) {
      if (i % 4 == 0) ahead.fetch(ahead.pace);
      __m256i s[R];
      QUIRE_UNROLL for (int r = 0; r < R; ++r) s[r] = _mm256_setzero_si256();
      for (int64_t d = 0; d < keys.row; d += 32) {
        const __m256i both = load_codes(k + d);
        const __m256i even = _mm256_shuffle_epi8(sizes, _mm256_and_si256(both, low));
        const __m256i odd =
            _mm256_shuffle_epi8(sizes, _mm256_and_si256(_mm256_srli_epi16(both, 4), low));
        int64_t bits;
        __builtin_memcpy(&bits, signs + d / 4, sizeof bits);
        const __m256i own = _mm256_shuffle_epi8(_mm256_set1_epi64x(bits), byte_of);
        const auto sign = [&](__m256i bit) {  // -1 or 1
          return _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_and_si256(own, bit), bit), one);
        };
        const __m256i even_sign = sign(even_bit), odd_sign = sign(odd_bit);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          const int8_t* const x = q + r * kWidth + 2 * d;
          s[r] = add_products(s[r], load_codes(x), even, even_sign);
          s[r] = add_products(s[r], load_codes(x + 32), odd, odd_sign);
        }
      }
      QUIRE_UNROLL for (int r = 0; r < R; ++r) sums[r][i] = _mm256_cvtepi32_ps(s[r]);
    }
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      const Vec folded[2] = {fold(sums[r]), fold(sums[r] + 4)};
      store(scores + r * kKeys + j, mul(join(folded), load(scales.k + j)));
    }
  }
}

// Values' levels above the lowest, by codes with all bits flipped. The first is 0, so the zero above a
// code's byte selects a zero: levels are numbers of 16 bits.
alignas(16) constexpr uint8_t kRisen[16] = {0,   31,  52,  69,  84,  97,  109, 121,
                                            254, 223, 202, 185, 170, 157, 145, 133};
static_assert(kRisen[8] == kValues[7] + 127 && kRisen[7] == kValues[8] + 127);

// Of R rows: sums[r] += weight[r][j] * v[j] over the groups of keys [begin, end), for 32 columns of the
// 64 from d on: kHalf selects 16 of each 32. Values are those of kRisen. Vector c of sums has every
// fourth column from c on; `order_sums` restores the order.
template <int R, bool kHalf>
void add_columns(int32_t* sums, const int16_t* weights, const Keys<int8_t>& keys, Ahead& ahead,
                 int begin, int end, int64_t d) {
  const __m256i levels = level_table(kRisen);
  const __m256i low = _mm256_set1_epi16(15), all = _mm256_set1_epi8(-1);
  __m256i s[R][4];
  const auto at = [&](int r, int c) {
    return reinterpret_cast<__m256i*>(sums + r * kWidth + d + kHalf * 32 + c * 8);
  };
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int c = 0; c < 4; ++c) s[r][c] = _mm256_load_si256(at(r, c));
  }
  for (int j = begin; j < end; j += kGroup) {
    const int8_t* v = keys.value(j) + d / 2;
    for (int i = j; i < j + kGroup; i += 2, v += 2 * keys.row) {
      if (i % 4 == 0) ahead.fetch(1);
      const __m256i even = load_codes(v), odd = load_codes(v + keys.row);
      const __m256i x = _mm256_xor_si256(
          kHalf ? _mm256_unpackhi_epi16(even, odd) : _mm256_unpacklo_epi16(even, odd), all);
      const __m256i of[4] = {
          _mm256_shuffle_epi8(levels, _mm256_and_si256(x, low)),
          _mm256_shuffle_epi8(levels, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)),
          _mm256_shuffle_epi8(levels, _mm256_and_si256(_mm256_srli_epi16(x, 8), low)),
          _mm256_shuffle_epi8(levels, _mm256_srli_epi16(x, 12))};
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        int pair;
        __builtin_memcpy(&pair, weights + r * kKeys + i, sizeof pair);
        const __m256i weight = _mm256_set1_epi32(pair);
        QUIRE_UNROLL for (int c = 0; c < 4; ++c) {
          s[r][c] = _mm256_add_epi32(s[r][c], _mm256_madd_epi16(of[c], weight));
        }
      }
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int c = 0; c < 4; ++c) _mm256_store_si256(at(r, c), s[r][c]);
  }
}

template <int R>
void add_codes(int32_t* sums, const int16_t* weights, const Keys<int8_t>& keys, Ahead& ahead,
               int begin, int end) {
  if constexpr (R > 2) {  // more sums than registers
    add_codes<2>(sums, weights, keys, ahead, begin, end);
    add_codes<R - 2>(sums + 2 * kWidth, weights + 2 * kKeys, keys, ahead, begin, end);
  } else {
    for (int64_t d = 0; d < keys.dim; d += 64) {
      add_columns<R, false>(sums, weights, keys, ahead, begin, end, d);
      add_columns<R, true>(sums, weights, keys, ahead, begin, end, d);
    }
  }
}

// Returns the sum of the weights, which are written as integers.
inline int32_t order_weights(const float* weights, int64_t count, int16_t* to) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<int16_t>(weights[i]);
    total += to[i];
  }
  return total;
}

// The sums of `add_codes` in the order of the columns, and of the levels themselves.
inline void order_sums(const int32_t* sums, int32_t total, int64_t dim, float* to) {
  const __m256i risen = _mm256_set1_epi32(127 * total);
  for (int64_t d = 0; d < dim; d += 32) {
    Vec x[4], y[4];
    QUIRE_UNROLL for (int c = 0; c < 4; ++c) {
      const auto* const from = reinterpret_cast<const __m256i*>(sums + d + c * 8);
      x[c] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_load_si256(from), risen));
    }
    for (int c = 0; c < 2; ++c) {
      y[2 * c] = _mm256_unpacklo_ps(x[2 * c], x[2 * c + 1]);
      y[2 * c + 1] = _mm256_unpackhi_ps(x[2 * c], x[2 * c + 1]);
    }
    float* const low = to + d / 64 * 64 + d % 64 / 2;
    QUIRE_UNROLL for (int c = 0; c < 4; ++c) {
      const Vec left = y[c / 2], right = y[2 + c / 2];
      const Vec columns = c % 2 == 0 ? _mm256_shuffle_ps(left, right, 0x44)
                                     : _mm256_shuffle_ps(left, right, 0xee);
      _mm_store_ps(low + 4 * c, _mm256_castps256_ps128(columns));
      _mm_store_ps(low + 32 + 4 * c, _mm256_extractf128_ps(columns, 1));
    }
  }
}
#else
inline bool multiplies_codes(int64_t) { return false; }
inline void order_query(const float*, int64_t, int8_t*) {}
inline int32_t order_weights(const float*, int64_t, int16_t*) { return 0; }
inline void order_sums(const int32_t*, int32_t, int64_t, float*) {}
template <int R>
void score_codes(const int8_t*, const Keys<int8_t>&, const Scales&, Ahead&, int, int, float*) {}
template <int R>
void add_codes(int32_t*, const int16_t*, const Keys<int8_t>&, Ahead&, int, int) {}
#endif

// Rounds a row of queries, zeros behind it; returns the factor of its scores.
inline float round_query(float* from, int64_t dim, float* q, int8_t* codes) {
  const float worth = round_to_units(from, (dim + kLanes - 1) / kLanes * kLanes, kQueryUnits);
  widen(from, dim, q);
  if (multiplies_codes(dim)) order_query(q, dim, codes);
  return worth;
}

}  // namespace
}  // namespace quire::QUIRE_ISA
