// RMSNorm and residual-add RMSNorm, as in Hugging Face's Llama: sum and scaling in float, one rounding
// to T before the product with the weight, and one after it. With a wide weight, as in its Gemma: one
// rounding at the end.
//
// The order of every sum depends only on `cols`, so results are batch-invariant to the bit.
#include "kernels.h"
#include "norm_row.h"

namespace quire::QUIRE_ISA {

template <class T>
void rms_norm(const NormArgs& a, int64_t task) {
  const Gain gain{a.weight, a.wide_weight};
  each_row<T>(a, task, [&](T* y, const auto& row, const T* x) {
    scale_row(y, x, gain, a.cols, inverse_rms(row, a.cols, a.eps));
  });
}

template void rms_norm<float>(const NormArgs&, int64_t);
template void rms_norm<bf16>(const NormArgs&, int64_t);
template void rms_norm<f16>(const NormArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
