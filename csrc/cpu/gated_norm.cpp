// RMS norm of groups of a row times a function of a gate, or of that product. In float, rounded once.
#include "kernels.h"
#include "norm_row.h"
#include "row_range.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {

namespace {

inline Vec times_gate(Vec x, Vec gate, Gate kind) {
  if (kind == kFactor) return mul(x, gate);
  return times_sigmoid(kind == kSilu ? mul(x, gate) : x, gate);
}

// A row, or its product with the function of its gate.
template <class T>
struct GatedRow {
  const T *x, *gate;
  Gate kind;
  bool gated;

  Vec of(Vec v, Vec g) const { return gated ? times_gate(v, g, kind) : v; }
  Vec at(int64_t i) const { return of(load(x + i), load(gate + i)); }
  Vec at(int64_t i, int64_t n) const { return of(load(x + i, n), load(gate + i, n)); }
};

// A row times the function of its gate, of which `each` columns share one element.
template <class T>
void shared_gates(const GatedNormArgs& a, int64_t r) {
  const T* gate = row_at<T>(a.gate, r, a.gate_stride);
  const T* x = row_at<T>(a.x, r, a.x_stride);
  T* y = row_at<T>(a.y, r, a.y_stride);
  for (int64_t begin = 0; begin < a.cols; begin += a.each, ++gate, x += a.each, y += a.each) {
    T copies[kLanes];
    for (T& copy : copies) copy = *gate;
    const Vec g = load(copies);
    int64_t i = 0;
    for (; i + kLanes <= a.each; i += kLanes) store(y + i, times_gate(load(x + i), g, a.kind));
    if (const int64_t n = a.each - i; n > 0) store(y + i, times_gate(load(x + i, n), g, a.kind), n);
  }
}

}  // namespace

template <class T>
void gated_norm(const GatedNormArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  const int64_t group = a.weight == nullptr ? a.cols : a.group;
  for (int64_t r = range.begin; r < range.end; ++r) {
    if (a.each > 1) {
      shared_gates<T>(a, r);
      continue;
    }
    for (int64_t begin = 0; begin < a.cols; begin += group) {
      const T* const gate = row_at<T>(a.gate, r, a.gate_stride) + begin;
      const GatedRow<T> row{row_at<T>(a.x, r, a.x_stride) + begin, gate, a.kind, !a.norm_first};
      T* const y = row_at<T>(a.y, r, a.y_stride) + begin;
      const float* const weight = a.one_weight ? a.weight : a.weight + begin;
      const Vec scale = broadcast(a.weight == nullptr ? 1.0f : inverse_rms(row, group, a.eps));
      const auto result = [&](Vec x, Vec w, Vec g) {
        const Vec v = mul(mul(x, scale), w);
        return a.norm_first ? times_gate(v, g, a.kind) : v;
      };
      const Vec one = broadcast(1.0f);
      each_vector(group, [&](int64_t i, auto... rest) {
        const Vec w = a.weight == nullptr ? one : load(weight + i, rest...);
        store(y + i, result(row.at(i, rest...), w, load(gate + i, rest...)), rest...);
      });
    }
  }
}

template void gated_norm<float>(const GatedNormArgs&, int64_t);
template void gated_norm<bf16>(const GatedNormArgs&, int64_t);
template void gated_norm<f16>(const GatedNormArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
