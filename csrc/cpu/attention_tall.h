// Products of attention_pairs.h for the many rows of a prompt's tile. Keys and values are reordered once
// for all rows, and all rows read a run of keys or columns while it is in cache.
//
// A vector holds one pair of columns of 16 keys. So a row's 16 dot products are the lanes of a sum, and
// no sum over lanes is needed. The order of summation is that of `fold` and `join` for few rows, so
// scores have the same bits.
#pragma once

#include "attention_float8.h"

#if defined(QUIRE_PAIRS)
#include "transpose.h"
#define QUIRE_INLINE __attribute__((always_inline))

namespace quire::QUIRE_ISA {
namespace {

// Reads 32 columns of a key, times kVectors, in the queries' order.
template <class E, class T>
struct KeyReader {
  static constexpr int kVectors = 1;
  void read(const T* key, __m512i* x) const { x[0] = Pairs<E>::load(key); }
};
template <IsFloat8 F8>
struct KeyReader<Halved, F8> {
  static constexpr int kVectors = 2;
  Float8Pairs<F8> pairs;
  void read(const F8* key, __m512i* x) const {
    pairs.widen(_mm512_loadu_si512(key), x[0], x[1]);
  }
};

template <class E, class T>
struct TallPairs {
  Keys<T> keys;
  alignas(64) uint32_t pairs[kKeys / kGroup][kWidth / 2][kGroup];  // of columns, of 16 keys
  alignas(64) E values[kKeys * kWidth];                            // as `interleave` leaves them

  explicit TallPairs(const Keys<T>& from) : keys(from) {
    for (int j = first_group(keys); j < end_group(keys); j += kGroup) put_keys(j);
    constexpr int kVectors = kInterleaved<T>;
    for (int j = keys.first / 2 * 2; j < keys.last; j += 2) {
      for (int64_t d = 0; d < keys.dim; d += kVectors * kLanes) {
        __m512i x[kVectors];
        Pairs<E>::interleave(value_or_zeros(keys, j, d), value_or_zeros(keys, j + 1, d), x);
        for (int c = 0; c < kVectors; ++c) {
          _mm512_store_si512(values + j * keys.dim + 2 * d + 32 * c, x[c]);
        }
      }
    }
  }

  // The 16 keys from j on; zeros for blocks outside the tile.
  void put_keys(int j) {
    constexpr int kVectors = KeyReader<E, T>::kVectors;
    const KeyReader<E, T> reader;
    for (int64_t d = 0; d < keys.dim; d += 32 * kVectors) {
      __m512i rows[kVectors][kGroup];
      for (int i = 0; i < kGroup; ++i) {
        __m512i x[kVectors] = {};
        if (keys.has_block(j + i)) reader.read(keys.key(j + i) + d, x);
        for (int c = 0; c < kVectors; ++c) rows[c][i] = x[c];
      }
      for (int c = 0; c < kVectors; ++c) transpose(rows[c], pairs[j / kGroup][d / 2 + 16 * c]);
    }
  }
};

template <>
struct Tall<bf16, bf16> : TallPairs<bf16, bf16> {
  using TallPairs::TallPairs;
};
template <>
struct Tall<int16_t, int8_t> : TallPairs<int16_t, int8_t> {
  using TallPairs::TallPairs;
};
template <IsFloat8 F8>
struct Tall<Halved, F8> : TallPairs<Halved, F8> {
  using TallPairs<Halved, F8>::TallPairs;
};

// sums[r] = the part of R rows' dot products with 16 keys in `lane`, or for kBits > 0 in 2^kBits lanes
// from it on, in the order of `fold` and `join`.
template <int R, int kBits, class E>
QUIRE_INLINE inline void sum_lanes(const E* q, const uint32_t (*pairs)[kGroup], int64_t dim, int lane,
                                   Vec* sums) {
  using P = Pairs<E>;
  if constexpr (kBits == 0) {
    QUIRE_UNROLL for (int r = 0; r < R; ++r) sums[r] = zero();
    for (int64_t d = 0; d < dim; d += 32) {
      const __m512i x = _mm512_load_si512(pairs[d / 2 + lane]);
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        sums[r] = P::dot(sums[r], pair_at(q + r * kWidth + d + 2 * lane), x);
      }
    }
  } else {
    constexpr int kStride[] = {2, 1, 8, 4};
    Vec others[R];
    sum_lanes<R, kBits - 1>(q, pairs, dim, lane, sums);
    sum_lanes<R, kBits - 1>(q, pairs, dim, lane + kStride[kBits - 1], others);
    QUIRE_UNROLL for (int r = 0; r < R; ++r) sums[r] = P::plus(sums[r], others[r]);
  }
}

// scores[r][j] of the 16 keys from j on.
template <int R, class E, class T>
void score_tall(const E* q, const TallPairs<E, T>& tall, const Scales* scales, int j, float* scores) {
  Vec sums[R];
  sum_lanes<R, 4>(q, tall.pairs[j / kGroup], tall.keys.dim, 0, sums);
  for (int r = 0; r < R; ++r) {
    const Vec score = Pairs<E>::floats(sums[r]);
    store(scores + r * kKeys + j, scales != nullptr ? mul(score, load(scales->k + j)) : score);
  }
}

// `add_weighted` for kTallColumns of a tile's columns, or the remaining ones, from d on.
template <int R, class E, class T>
void add_tall(const Sums& sums, const E* weights, const TallPairs<E, T>& tall, Ahead& ahead,
              int64_t d) {
  const Keys<T>& keys = tall.keys;
  const int begin = first_group(keys), end = end_group(keys);
  if (d + kTallColumns <= keys.dim) {
    constexpr int kVectors = kTallColumns / kLanes;
    return add_values<R, kVectors, true>(sums, weights, keys, ahead, tall.values, begin, end, d);
  }
  for (; d < keys.dim; d += kInterleaved<T> * kLanes) {
    add_values<R, kInterleaved<T>, true>(sums, weights, keys, ahead, tall.values, begin, end, d);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA

#endif
