// Activations of rows: computed in float, rounded once.
#include "activation_math.h"
#include "kernels.h"
#include "row_range.h"

namespace quire::QUIRE_ISA {

namespace {

template <class T, class F>
void unary(const UnaryArgs& a, int64_t task, const F& f = F()) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* x = row_at<T>(a.x, r, a.x_stride);
    each_vector(a.cols, [&](int64_t i, auto... rest) {
      store(y + i, f.of(load(x + i, rest...)), rest...);
    });
  }
}

template <class T, class F>
void gated(const UnaryArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* gate = row_at<T>(a.x, r, a.x_stride);
    const T* up = gate + a.cols;
    each_vector(a.cols, [&](int64_t i, auto... rest) {
      store(y + i, F::of(load(gate + i, rest...), load(up + i, rest...)), rest...);
    });
  }
}

template <class T, class F, bool is_gated>
void activate(const UnaryArgs& a, int64_t task) {
  if constexpr (is_gated) {
    gated<T, F>(a, task);
  } else {
    unary<T, F>(a, task);
  }
}

}  // namespace

template <class T>
void scale(const UnaryArgs& a, int64_t task) {
  unary<T>(a, task, Scale{broadcast(a.parameter)});
}

template <class T>
void softcap(const UnaryArgs& a, int64_t task) {
  unary<T>(a, task, Softcap{broadcast(a.parameter)});
}

template <class T>
void xielu(const UnaryArgs& a, int64_t task) {
  unary<T>(a, task, Xielu{broadcast(a.parameter), broadcast(a.negative), broadcast(a.linear)});
}

template <class T>
void add_rows(const AddArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* left = row_at<T>(a.a, r, a.a_stride);
    const T* right = row_at<T>(a.b, r, a.b_stride);
    each_vector(a.cols, [&](int64_t i, auto... rest) {
      store(y + i, add(load(left + i, rest...), load(right + i, rest...)), rest...);
    });
  }
}

#define QUIRE_INSTANCES(T)                            \
  template void scale<T>(const UnaryArgs&, int64_t);   \
  template void softcap<T>(const UnaryArgs&, int64_t); \
  template void xielu<T>(const UnaryArgs&, int64_t);   \
  template void add_rows<T>(const AddArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

#define QUIRE_ENTRY(code, name, F, gated) \
  {activate<float, F<float>, gated>, activate<bf16, F<bf16>, gated>, activate<f16, F<f16>, gated>},
extern const ActivationKernels kActivation;
const ActivationKernels kActivation = {{{}, QUIRE_ACTIVATIONS(QUIRE_ENTRY)}};

}  // namespace quire::QUIRE_ISA
