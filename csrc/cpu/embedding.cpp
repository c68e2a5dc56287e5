// Token embedding, with learned positions added where a model has them.
#include "embedding.h"

#include "row_range.h"
#include "simd.h"

namespace quire::QUIRE_ISA {

template <class T>
void embedding(const EmbeddingArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* token = row_at<T>(a.weight, a.ids[r], a.weight_stride);
    if (a.position_weight == nullptr) {
      copy(y, token, a.cols);
      continue;
    }
    const T* position = row_at<T>(a.position_weight, a.positions[r], a.position_stride);
    int64_t i = 0;
    for (; i + kLanes <= a.cols; i += kLanes) {
      store(y + i, add(load(token + i), load(position + i)));
    }
    if (i < a.cols) {
      const int64_t n = a.cols - i;
      store(y + i, add(load(token + i, n), load(position + i, n)), n);
    }
  }
}

template void embedding<float>(const EmbeddingArgs&, int64_t);
template void embedding<bf16>(const EmbeddingArgs&, int64_t);
template void embedding<f16>(const EmbeddingArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
