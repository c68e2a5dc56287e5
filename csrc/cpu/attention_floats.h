// Products of attention in floats, for caches of any dtype.
#pragma once

#include "attention_tile.h"

namespace quire::QUIRE_ISA {
namespace {

template <class T>
void widen(const T* from, int64_t dim, float* to) {
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) store(to + d, load(from + d));
  if (kTails && d < dim) store(to + d, load(from + d, dim - d), dim - d);
}

// Converts one query row to floats; returns the factor of its scores.
template <class Q>
float load_query(const Q* from, int64_t dim, float* q) {
  widen(from, dim, q);
  return 1.0f;
}

// dots[r][c] = q[r] * keys[c], lane by lane, for R rows and the C keys from `first` on.
template <int R, int C, class T>
inline void multiply(const float* q, const T* const* keys, int64_t dim, int first, Vec (*dots)[4]) {
  Vec s[R][C];
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int c = 0; c < C; ++c) s[r][c] = zero();
  }
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    Vec k[C];
    QUIRE_UNROLL for (int c = 0; c < C; ++c) k[c] = load(keys[first + c] + d);
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      const Vec x = load(q + r * kWidth + d);
      QUIRE_UNROLL for (int c = 0; c < C; ++c) s[r][c] = fma(x, k[c], s[r][c]);
    }
  }
  if (kTails && d < dim) {
    for (int c = 0; c < C; ++c) {
      const Vec tail = load(keys[first + c] + d, dim - d);
      for (int r = 0; r < R; ++r) s[r][c] = fma(load(q + r * kWidth + d, dim - d), tail, s[r][c]);
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int c = 0; c < C; ++c) dots[r][first + c] = s[r][c];
  }
}

// scores[r][j] = q[r] . k[j] for R rows and the groups of keys [begin, end).
template <int R, class T>
void score(const float* q, const Keys<T>& keys, const Scales* scales, Ahead& ahead, int begin,
           int end, float* scores) {
  constexpr int kAtOnce = R > 2 && kLanes < 16 ? 2 : 4;  // keys, so that sums stay in registers
  for (int j = begin; j < end; j += kGroup) {
    Vec folded[R][kGroup / 4];
    for (int i = 0; i < kGroup; i += 4) {
      ahead.fetch(ahead.pace);
      const T* const k = keys.key(j + i);
      const int64_t dim = k != nullptr ? keys.dim : 0;
      const T* const ks[4] = {k, k + dim, k + 2 * dim, k + 3 * dim};
      Vec dots[R][4];
      for (int c = 0; c < 4; c += kAtOnce) multiply<R, kAtOnce>(q, ks, dim, c, dots);
      for (int r = 0; r < R; ++r) folded[r][i / 4] = fold(dots[r]);
    }
    for (int r = 0; r < R; ++r) {
      const Vec score = join(folded[r]);
      store(scores + r * kKeys + j, scales != nullptr ? mul(score, load(scales->k + j)) : score);
    }
  }
}

// Prepares the weights of a row for `add_values`, in place; returns the factor of their products.
QUIRE_ONCE inline float round_weights(float* weights, int begin, int end, const Scales* scales, float*) {
  for (int j = begin; scales != nullptr && j < end; j += kGroup) {
    store(weights + j, mul(load(weights + j), load(scales->v + j)));
  }
  return 1.0f;
}

// For R rows and C vectors from column d on: acc[r] += weight[r][j] * v[j], over those of the keys
// [begin, end) that the tile has; with the first of them, acc is multiplied by `keep` before. A single
// vector may pass the end of the head.
template <int R, int C, class T>
void add_values(const Sums& sums, const float* weights, const Keys<T>& keys, Ahead& ahead,
                int begin, int end, int64_t d) {
  Vec s[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      s[r][c] = load(sums.acc + r * kWidth + d + c * kLanes);
      if (begin <= keys.first) s[r][c] = mul(s[r][c], broadcast(sums.keep[r]));
    }
  }
  const int first = begin > keys.first ? begin : keys.first;
  const int last = end < keys.last ? end : keys.last;
  const int64_t left = keys.dim - d < kLanes ? keys.dim - d : kLanes;
  constexpr int kLinesOfFour = C * static_cast<int>(kLanes * sizeof(T)) / 16;
  constexpr int kPace = kLinesOfFour > 0 ? kLinesOfFour : 1;
  for (int j = first; j < last; ++j) {
    if (j % 4 == 0) ahead.fetch(kPace);
    const T* v = keys.value(j) + d;
    Vec x[C];
    for (int c = 0; c < C; ++c) x[c] = kTails && C == 1 ? load(v, left) : load(v + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(weights[r * kKeys + j]);
      for (int c = 0; c < C; ++c) s[r][c] = fma(weight, x[c], s[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(sums.acc + r * kWidth + d + c * kLanes, s[r][c]);
  }
}

constexpr int kFloatColumns = kLanes >= 16 ? 4 : 2;  // accumulators of add_values stay in registers

template <int R, class T>
void add_weighted(const Sums& sums, const float* weights, const Keys<T>& keys, Ahead& ahead, int begin,
                  int end) {
  int64_t d = 0;
  for (; d + kFloatColumns * kLanes <= keys.dim; d += kFloatColumns * kLanes) {
    add_values<R, kFloatColumns>(sums, weights, keys, ahead, begin, end, d);
  }
  for (; d < keys.dim; d += kLanes) {
    add_values<R, 1>(sums, weights, keys, ahead, begin, end, d);
  }
}

// Restores the order of acc's columns after `add_weighted`.
void order_columns(float*, int64_t, const float*) {}

// A tile's keys and values as floats.
template <class E, class T>
struct Tall;

template <class T>
struct Tall<float, T> {
  alignas(64) float k[kKeys * kWidth], v[kKeys * kWidth];
  Keys<float> keys{};
  explicit Tall(const Keys<T>& from) {
    keys.k[0] = k;
    keys.v[0] = v;
    keys.first = from.first;
    keys.last = from.last;
    keys.shift = __builtin_ctz(kKeys);
    keys.dim = keys.row = from.dim;
    for (int j = from.first; j < from.last; ++j) {
      widen(from.key(j), from.dim, k + j * from.dim);
      widen(from.value(j), from.dim, v + j * from.dim);
    }
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
