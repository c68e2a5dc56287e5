// RMSNorm and residual-add RMSNorm, as Hugging Face's Llama computes them: the sum and the scaling
// in float, one rounding to T before the product with the weight and one after it; with a wide weight,
// as its Gemma does: one rounding, at the end.
//
// The order of every sum depends on `cols` alone, so results are batch-invariant to the last bit.
#include "norm.h"

#include "norm_row.h"
#include "row_range.h"

namespace quire::QUIRE_ISA {

template <class T>
void rms_norm(const RmsNormArgs& a) {
  const Gain gain{a.weight, a.wide_weight};
  for (int64_t r = 0; r < a.rows; ++r) {
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    scale_row(y, x, gain, a.cols, inverse_rms(PlainRow<T>{x}, a.cols, a.eps));
  }
}

template <class T>
void add_rms_norm(const AddRmsNormArgs& a) {
  const Gain gain{a.weight, a.wide_weight};
  for (int64_t r = 0; r < a.rows; ++r) {
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    T* out = static_cast<T*>(a.residual_out) + r * a.residual_out_stride;
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const T* residual = static_cast<const T*>(a.residual) + r * a.residual_stride;
    const float scale = inverse_rms(SummedRow<T>{out, x, residual}, a.cols, a.eps);
    scale_row(y, out, gain, a.cols, scale);
  }
}

template <class T>
void rms_norm_task(const RmsNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  RmsNormArgs part = a;
  part.y = row_at<T>(a.y, range.begin, a.y_stride);
  part.x = row_at<T>(a.x, range.begin, a.x_stride);
  part.rows = range.end - range.begin;
  rms_norm<T>(part);
}

template <class T>
void add_rms_norm_task(const AddRmsNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  AddRmsNormArgs part = a;
  part.y = row_at<T>(a.y, range.begin, a.y_stride);
  part.residual_out = row_at<T>(a.residual_out, range.begin, a.residual_out_stride);
  part.x = row_at<T>(a.x, range.begin, a.x_stride);
  part.residual = row_at<T>(a.residual, range.begin, a.residual_stride);
  part.rows = range.end - range.begin;
  add_rms_norm<T>(part);
}

#define QUIRE_INSTANCES(T)                                     \
  template void rms_norm<T>(const RmsNormArgs&);               \
  template void add_rms_norm<T>(const AddRmsNormArgs&);        \
  template void rms_norm_task<T>(const RmsNormArgs&, int64_t); \
  template void add_rms_norm_task<T>(const AddRmsNormArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
