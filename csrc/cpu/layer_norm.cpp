// LayerNorm and residual-add LayerNorm, as torch computes them in float: mean and variance of the row,
// one rounding to T at the end. The variance is that of the centred row, so a large mean loses no
// digits. The order of every sum depends only on `cols`.
#include "kernels.h"
#include "norm_row.h"

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
  each_vector(cols, [&](int64_t i, auto... rest) {
    const Vec v = mul(sub(load(x + i, rest...), mean), scale);
    store(y + i, fma(v, load(weight + i, rest...), load(bias + i, rest...)), rest...);
  });
}

}  // namespace

template <class T>
void layer_norm(const NormArgs& a, int64_t task) {
  const T *const weight = static_cast<const T*>(a.weight), *const bias = static_cast<const T*>(a.bias);
  each_row<T>(a, task, [&](T* y, const auto& row, const T* x) {
    normalize(y, row, x, weight, bias, a.cols, a.eps);
  });
}

template void layer_norm<float>(const NormArgs&, int64_t);
template void layer_norm<bf16>(const NormArgs&, int64_t);
template void layer_norm<f16>(const NormArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
