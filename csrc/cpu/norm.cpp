// RMSNorm and residual-add RMSNorm, as in Hugging Face's Llama: sum and scaling in float, one rounding
// to T before the product with the weight, and one after it. With a wide weight, as in its Gemma: one
// rounding at the end.
//
// The order of every sum depends only on `cols`, so results are batch-invariant to the bit.
#include "kernels.h"
#include "norm_row.h"
#include "row_range.h"

namespace quire::QUIRE_ISA {

template <class T>
void rms_norm(const RmsNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  const Gain gain{a.weight, a.wide_weight};
  for (int64_t r = range.begin; r < range.end; ++r) {
    const T* x = row_at<T>(a.x, r, a.x_stride);
    const float scale = inverse_rms(PlainRow<T>{x}, a.cols, a.eps);
    scale_row(row_at<T>(a.y, r, a.y_stride), x, gain, a.cols, scale);
  }
}

template <class T>
void add_rms_norm(const AddRmsNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  const Gain gain{a.weight, a.wide_weight};
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* out = row_at<T>(a.residual_out, r, a.residual_out_stride);
    const SummedRow<T> row{out, row_at<T>(a.x, r, a.x_stride),
                           row_at<T>(a.residual, r, a.residual_stride)};
    const float scale = inverse_rms(row, a.cols, a.eps);
    scale_row(row_at<T>(a.y, r, a.y_stride), static_cast<const T*>(out), gain, a.cols, scale);
  }
}

#define QUIRE_INSTANCES(T)                                \
  template void rms_norm<T>(const RmsNormArgs&, int64_t); \
  template void add_rms_norm<T>(const AddRmsNormArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
