// LayerNorm and residual-add LayerNorm, as torch computes them in float: mean and variance of the row,
// one rounding to T at the end. The variance is that of the centred row, so a large mean loses no
// digits. The order of every sum depends only on `cols`.
#include "kernels.h"
#include "norm_row.h"
#include "row_range.h"

namespace quire::QUIRE_ISA {

namespace {

struct Plain {
  static Vec onto(Vec total, Vec v) { return add(total, v); }
  static Vec onto(Vec total, Vec v, int64_t) { return add(total, v); }
};

struct CentredSquare {
  Vec mean;

  Vec onto(Vec total, Vec v) const {
    const Vec d = sub(v, mean);
    return fma(d, d, total);
  }
  Vec onto(Vec total, Vec v, int64_t n) const {
    float lanes[kLanes];
    store(lanes, sub(v, mean));
    const Vec d = load(lanes, n);
    return fma(d, d, total);
  }
};

// Reads `row` only once; afterwards its elements are in `x`.
template <class T, class Row>
void normalize(T* y, const Row& row, const T* x, const T* weight, const T* bias, int64_t cols,
               float eps) {
  const float count = static_cast<float>(cols);
  const Vec mean = broadcast(sum_over(row, cols, Plain{}) / count);
  const float variance = sum_over(PlainRow<T>{x}, cols, CentredSquare{mean}) / count;
  const Vec scale = broadcast(1.0f / __builtin_sqrtf(variance + eps));
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    const Vec v = mul(sub(load(x + i), mean), scale);
    store(y + i, fma(v, load(weight + i), load(bias + i)));
  }
  if (i < cols) {
    const int64_t n = cols - i;
    const Vec v = mul(sub(load(x + i, n), mean), scale);
    store(y + i, fma(v, load(weight + i, n), load(bias + i, n)), n);
  }
}

}  // namespace

template <class T>
void layer_norm(const LayerNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  for (int64_t r = range.begin; r < range.end; ++r) {
    const T* x = row_at<T>(a.x, r, a.x_stride);
    normalize(row_at<T>(a.y, r, a.y_stride), PlainRow<T>{x}, x, weight, bias, a.cols, a.eps);
  }
}

template <class T>
void add_layer_norm(const AddLayerNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  const T* weight = static_cast<const T*>(a.weight);
  const T* bias = static_cast<const T*>(a.bias);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* out = row_at<T>(a.residual_out, r, a.residual_out_stride);
    const SummedRow<T> row{out, row_at<T>(a.x, r, a.x_stride),
                           row_at<T>(a.residual, r, a.residual_stride)};
    normalize(row_at<T>(a.y, r, a.y_stride), row, static_cast<const T*>(out), weight, bias, a.cols,
              a.eps);
  }
}

#define QUIRE_INSTANCES(T)                                     \
  template void layer_norm<T>(const LayerNormArgs&, int64_t); \
  template void add_layer_norm<T>(const AddLayerNormArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
