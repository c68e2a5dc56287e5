// Activations of rows: computed in float, rounded once.
#include "activation.h"

#include "activation_math.h"
#include "row_range.h"

namespace quire::QUIRE_ISA {

namespace {

template <class T, class F>
void unary(const UnaryArgs& a, int64_t task, const F& f = F()) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* x = row_at<T>(a.x, r, a.x_stride);
    int64_t i = 0;
    for (; i + kLanes <= a.cols; i += kLanes) store(y + i, f.of(load(x + i)));
    if (i < a.cols) store(y + i, f.of(load(x + i, a.cols - i)), a.cols - i);
  }
}

template <class T, class F>
void gated(const UnaryArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* gate = row_at<T>(a.x, r, a.x_stride);
    const T* up = gate + a.cols;
    int64_t i = 0;
    for (; i + kLanes <= a.cols; i += kLanes) {
      store(y + i, F::of(load(gate + i), load(up + i)));
    }
    if (i < a.cols) {
      const int64_t n = a.cols - i;
      store(y + i, F::of(load(gate + i, n), load(up + i, n)), n);
    }
  }
}

}  // namespace

template <class T>
void silu_mul(const UnaryArgs& a, int64_t task) {
  gated<T, SiluTimes>(a, task);
}

template <class T>
void gelu_tanh_mul(const UnaryArgs& a, int64_t task) {
  gated<T, GeluTanhTimes>(a, task);
}

template <class T>
void gelu_mul(const UnaryArgs& a, int64_t task) {
  gated<T, GeluTimes>(a, task);
}

template <class T>
void gelu(const UnaryArgs& a, int64_t task) {
  unary<T, Gelu>(a, task);
}

template <class T>
void gelu_tanh(const UnaryArgs& a, int64_t task) {
  unary<T, GeluTanh>(a, task);
}

template <class T>
void relu(const UnaryArgs& a, int64_t task) {
  unary<T, Relu>(a, task);
}

template <class T>
void scale(const UnaryArgs& a, int64_t task) {
  unary<T>(a, task, Scale{broadcast(a.parameter)});
}

template <class T>
void softcap(const UnaryArgs& a, int64_t task) {
  unary<T>(a, task, Softcap{broadcast(a.parameter)});
}

template <class T>
void add_rows(const AddArgs& a, int64_t task) {
  const RowRange range(a.rows, a.task_rows, task);
  for (int64_t r = range.begin; r < range.end; ++r) {
    T* y = row_at<T>(a.y, r, a.y_stride);
    const T* left = row_at<T>(a.a, r, a.a_stride);
    const T* right = row_at<T>(a.b, r, a.b_stride);
    int64_t i = 0;
    for (; i + kLanes <= a.cols; i += kLanes) store(y + i, add(load(left + i), load(right + i)));
    if (i < a.cols) {
      const int64_t n = a.cols - i;
      store(y + i, add(load(left + i, n), load(right + i, n)), n);
    }
  }
}

#define QUIRE_INSTANCES(T)                                \
  template void silu_mul<T>(const UnaryArgs&, int64_t);  \
  template void gelu_tanh_mul<T>(const UnaryArgs&, int64_t);  \
  template void gelu_mul<T>(const UnaryArgs&, int64_t);  \
  template void gelu<T>(const UnaryArgs&, int64_t);      \
  template void gelu_tanh<T>(const UnaryArgs&, int64_t); \
  template void relu<T>(const UnaryArgs&, int64_t);      \
  template void scale<T>(const UnaryArgs&, int64_t);     \
  template void softcap<T>(const UnaryArgs&, int64_t);   \
  template void add_rows<T>(const AddArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
