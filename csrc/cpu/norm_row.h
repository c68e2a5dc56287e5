// One row of the norms; the order of sums depends only on `cols`.
#pragma once

#include "row_range.h"
#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

// A row in memory.
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

// Calls f(y, row, x) for each row of a task: `row` is read once, and then its elements are in `x`.
template <class T, class F>
void each_row(const NormArgs& a, int64_t task, const F& f) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* const y = row_at<T>(a.y, r, a.y_stride);
    const T* const x = row_at<T>(a.x, r, a.x_stride);
    if (a.residual == nullptr) {
      f(y, PlainRow<T>{x}, x);
    } else {
      T* const out = row_at<T>(a.residual_out, r, a.residual_out_stride);
      const T* const residual = row_at<T>(a.residual, r, a.residual_stride);
      f(y, SummedRow<T>{out, x, residual}, static_cast<const T*>(out));
    }
  }
}

// Σ f(v) over the row's vectors. f.onto(total, v) adds one vector; f.onto(total, v, n) adds the last, of
// which only n lanes count, the others being zero. Four accumulators hide the latency of an addition.
template <class Row, class F>
float sum_over(const Row& row, int64_t cols, const F& f) {
  constexpr int64_t kStep = 4 * kLanes;
  Vec s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + kStep <= cols; i += kStep) {
    const Vec a = row.at(i);
    const Vec b = row.at(i + kLanes);
    const Vec c = row.at(i + 2 * kLanes);
    const Vec d = row.at(i + 3 * kLanes);
    s0 = f.onto(s0, a);
    s1 = f.onto(s1, b);
    s2 = f.onto(s2, c);
    s3 = f.onto(s3, d);
  }
  for (; i + kLanes <= cols; i += kLanes) s0 = f.onto(s0, row.at(i));
  if (i < cols) s1 = f.onto(s1, row.at(i, cols - i), cols - i);
  return sum(add(add(s0, s1), add(s2, s3)));
}

struct Square {
  static Vec onto(Vec total, Vec v) { return fma(v, v, total); }
  static Vec onto(Vec total, Vec v, int64_t) { return fma(v, v, total); }
};

// 1 / sqrt(mean(row^2) + eps).
template <class Row>
float inverse_rms(const Row& row, int64_t cols, float eps) {
  const float total = sum_over(row, cols, Square{});
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(cols) + eps);
}

// A norm's weight: [cols], of the row's dtype or float.
struct Gain {
  const void* weight;
  bool wide;
};

// y = weight * round(x * scale), rounded to the weight's dtype
template <class T, class W>
void scale_row(T* y, const T* x, const W* weight, int64_t cols, float scale) {
  const Vec s = broadcast(scale);
  each_vector(cols, [&](int64_t i, auto... rest) {
    store(y + i, mul(load(weight + i, rest...), round<W>(mul(load(x + i, rest...), s))), rest...);
  });
}

template <class T>
void scale_row(T* y, const T* x, const Gain& gain, int64_t cols, float scale) {
  if (gain.wide) return scale_row(y, x, static_cast<const float*>(gain.weight), cols, scale);
  scale_row(y, x, static_cast<const T*>(gain.weight), cols, scale);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
