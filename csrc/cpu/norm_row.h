// One row of the norms: sums in an order that depends on `cols` alone.
#pragma once

#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

// A row as it lies in memory.
template <class T>
struct PlainRow {
  const T* x;

  Vec at(int64_t i) const { return load(x + i); }
  Vec at(int64_t i, int64_t n) const { return load(x + i, n); }
};

// The sum of two rows, stored as it is read. `out` may be `x` or `residual`.
template <class T>
struct SummedRow {
  T* out;
  const T* x;
  const T* residual;

  Vec at(int64_t i) const {
    const Vec v = round<T>(add(load(x + i), load(residual + i)));
    store(out + i, v);
    return v;
  }
  Vec at(int64_t i, int64_t n) const {
    const Vec v = round<T>(add(load(x + i, n), load(residual + i, n)));
    store(out + i, v, n);
    return v;
  }
};

// 1 / sqrt(mean(row^2) + eps). Four accumulators hide the latency of the multiply-add.
template <class Row>
float inverse_rms(const Row& row, int64_t cols, float eps) {
  constexpr int64_t kStep = 4 * kLanes;
  Vec s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + kStep <= cols; i += kStep) {
    const Vec a = row.at(i);
    const Vec b = row.at(i + kLanes);
    const Vec c = row.at(i + 2 * kLanes);
    const Vec d = row.at(i + 3 * kLanes);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
    s2 = fma(c, c, s2);
    s3 = fma(d, d, s3);
  }
  for (; i + kLanes <= cols; i += kLanes) {
    const Vec a = row.at(i);
    s0 = fma(a, a, s0);
  }
  if (i < cols) {
    const Vec a = row.at(i, cols - i);  // the lanes past the end are zero
    s1 = fma(a, a, s1);
  }
  const float total = sum(add(add(s0, s1), add(s2, s3)));
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(cols) + eps);
}

// What a norm multiplies by: [cols] of the row's dtype, or of float.
struct Gain {
  const void* weight;
  bool wide;
};

// y = weight * round(x * scale), rounded to the weight's dtype
template <class T, class W>
void scale_row(T* y, const T* x, const W* weight, int64_t cols, float scale) {
  const Vec s = broadcast(scale);
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    store(y + i, mul(load(weight + i), round<W>(mul(load(x + i), s))));
  }
  if (i < cols) {
    const int64_t n = cols - i;
    store(y + i, mul(load(weight + i, n), round<W>(mul(load(x + i, n), s))), n);
  }
}

template <class T>
void scale_row(T* y, const T* x, const Gain& gain, int64_t cols, float scale) {
  if (gain.wide) return scale_row(y, x, static_cast<const float*>(gain.weight), cols, scale);
  scale_row(y, x, static_cast<const T*>(gain.weight), cols, scale);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
