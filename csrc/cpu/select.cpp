// Argmax of float logits: comparisons only, so the answers are exact on every ISA.
#include "kernels.h"
#include "row_peak.h"

namespace quire::QUIRE_ISA {

void argmax(const ArgmaxArgs& a, int64_t task) {
  const int64_t pieces = (a.cols + kArgmaxColumns - 1) / kArgmaxColumns;
  const int64_t begin = task % pieces * kArgmaxColumns;
  const int64_t n = a.cols - begin < kArgmaxColumns ? a.cols - begin : kArgmaxColumns;
  const float* x = a.x + task / pieces * a.x_stride + begin;
  const float peak = peak_of(x, n);
  a.peaks[task] = peak;
  a.tokens[task] = peak == peak ? begin + first_from(x, n, peak) : -1;
}

}  // namespace quire::QUIRE_ISA
