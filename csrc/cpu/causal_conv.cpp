// Causal convolution of each channel. A row's sum has one order, whether its inputs are rows of the step
// or come from the state, which has the same numbers as floats.
#include "recurrent_parts.h"
#include "row_range.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {

namespace {

template <class T>
struct Channels {
  const ConvArgs& a;
  int64_t start;       // the sequence's first row
  const float* before;  // its state, or null

  // Input `lag` rows before row r, at channel c; n < kLanes channels, or all if n is 0.
  Vec input(int64_t r, int64_t lag, int64_t c, int64_t n) const {
    const int64_t from = r - lag;
    if (from >= start) {
      const T* x = row_at<T>(a.x, from, a.x_stride) + c;
      if (a.kind != kConvGated) return part(x, n);
      return round<T>(mul(part(x, n), part(x + 2 * a.channels, n)));
    }
    if (before == nullptr) return zero();
    return part(before + (a.width - 1 + from - start) * a.channels + c, n);
  }

  template <class P>
  static Vec part(const P* p, int64_t n) {
    return n == 0 ? load(p) : load(p, n);
  }

  void compute(int64_t r, int64_t c, int64_t n) const {
    Vec y = a.bias == nullptr ? zero() : part(a.bias + c, n);
    for (int64_t i = 0; i < a.width; ++i) {
      y = fma(part(a.weight + i * a.channels + c, n), input(r, a.width - 1 - i, c, n), y);
    }
    if (a.kind == kConvSilu) y = times_sigmoid(y, y);
    if (a.kind == kConvGated) {
      y = mul(y, part(row_at<T>(a.x, r, a.x_stride) + a.channels + c, n));
    }
    T* out = row_at<T>(a.y, r, a.y_stride) + c;
    if (n == 0) return store(out, y);
    store(out, y, n);
  }

  // Stores the inputs that the rows after r need. `to` may be `before`: what is read lies ahead.
  void keep(int64_t r, float* to, int64_t c, int64_t n) const {
    for (int64_t i = 0; i < a.width - 1; ++i) {
      const Vec x = input(r, a.width - 2 - i, c, n);
      if (n == 0) {
        store(to + i * a.channels + c, x);
      } else {
        store(to + i * a.channels + c, x, n);
      }
    }
  }

  template <class F>
  static void each(int64_t begin, int64_t end, const F& f) {
    int64_t c = begin;
    for (; c + kLanes <= end; c += kLanes) f(c, 0);
    if (c < end) f(c, end - c);
  }
};

}  // namespace

template <class T>
void causal_conv1d(const ConvArgs& a, int64_t task) {
  const int64_t s = task / a.parts, begin = task % a.parts * a.part_channels;
  const int64_t end = begin + a.part_channels < a.channels ? begin + a.part_channels : a.channels;
  const int64_t first = a.steps.query_start_loc[s], last = a.steps.query_start_loc[s + 1];
  const int64_t slot_floats = (a.width - 1) * a.channels, from = a.steps.from[s];
  const Channels<T> row{a, first, from < 0 ? nullptr : a.state + from * slot_floats};
  for (int64_t r = first; r < last; ++r) {
    row.each(begin, end, [&](int64_t c, int64_t n) { row.compute(r, c, n); });
    const int64_t to = a.steps.to[r];
    if (to < 0) continue;
    float* const state = a.state + to * slot_floats;
    row.each(begin, end, [&](int64_t c, int64_t n) { row.keep(r, state, c, n); });
  }
}

template void causal_conv1d<float>(const ConvArgs&, int64_t);
template void causal_conv1d<bf16>(const ConvArgs&, int64_t);
template void causal_conv1d<f16>(const ConvArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
