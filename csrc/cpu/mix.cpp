#include "kernels.h"
#include "row_range.h"
#include "simd.h"

namespace quire::QUIRE_ISA {

template <class T>
void mix_rows(const MixArgs& a, int64_t row) {
  const int64_t* place = a.place + row * a.top_k;
  const float* weights = a.weights + row * a.top_k;
  T* y = row_at<T>(a.y, row, a.cols);
  each_vector(a.cols, [&](int64_t c, auto... rest) {
    Vec total = zero();
    for (int64_t i = 0; i < a.top_k; ++i) {
      total = fma(broadcast(weights[i]), load(a.z + place[i] * a.cols + c, rest...), total);
    }
    store(y + c, total, rest...);
  });
}

template void mix_rows<float>(const MixArgs&, int64_t);
template void mix_rows<bf16>(const MixArgs&, int64_t);
template void mix_rows<f16>(const MixArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
