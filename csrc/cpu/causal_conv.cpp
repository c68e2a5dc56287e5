// Causal convolution of each channel. A row's sum has one order, whether its inputs are rows of the step
// or come from the state, which has the same numbers as floats.
#include "recurrent_parts.h"
#include "row_range.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {

namespace {

// kWidth is the width, or 0 for any. What a loop over vectors needs is in locals: a store of a vector could
// change anything else.
template <class T, int64_t kWidth>
struct Channels {
  const ConvArgs& a;
  int64_t start;       // the sequence's first row
  const float* before;  // its state, or null

  template <class P>
  static Vec part(const P* p, int64_t n) {
    return n == 0 ? load(p) : load(p, n);
  }
  template <class P>
  static void put(P* p, Vec v, int64_t n) {
    if (n == 0) return store(p, v);
    store(p, v, n);
  }

  template <class F>
  static void each(int64_t begin, int64_t end, const F& f) {
    int64_t c = begin;
    for (; c + kLanes <= end; c += kLanes) f(c, 0);
    if (c < end) f(c, end - c);
  }

  // Row r, channels [begin, end). Stores the inputs that the next rows need, if `to` is not null. It may be
  // `before`: what is read lies ahead.
  void compute(int64_t r, int64_t begin, int64_t end, float* to) const {
    const int64_t width = kWidth == 0 ? a.width : kWidth, channels = a.channels;
    const int64_t kept = start + width - 1 - r;  // so many inputs are in the state
    const float *const weight = a.weight, *const bias = a.bias, *state[kMostConvWidth];
    const T *const row = row_at<T>(a.x, r, a.x_stride), *rows[kMostConvWidth];
    T* const out = row_at<T>(a.y, r, a.y_stride);
    const int kind = a.kind;
    for (int64_t i = 0; i < width; ++i) {
      if (i < kept) {
        state[i] = before == nullptr ? nullptr : before + (i + r - start) * channels;
      } else {
        rows[i] = row_at<T>(a.x, r - width + 1 + i, a.x_stride);
      }
    }
    each(begin, end, [&](int64_t c, int64_t n) {
      Vec y = bias == nullptr ? zero() : part(bias + c, n);
      for (int64_t i = 0; i < width; ++i) {
        Vec x = zero();
        if (i >= kept) {
          x = part(rows[i] + c, n);
          if (kind == kConvGated) x = round<T>(mul(x, part(rows[i] + c + 2 * channels, n)));
        } else if (state[i] != nullptr) {
          x = part(state[i] + c, n);
        }
        y = fma(part(weight + i * channels + c, n), x, y);
        if (to != nullptr && i > 0) put(to + (i - 1) * channels + c, x, n);
      }
      if (kind == kConvSilu) y = times_sigmoid(y, y);
      if (kind == kConvGated) y = mul(y, part(row + channels + c, n));
      put(out + c, y, n);
    });
  }
};

template <class T, int64_t kWidth>
void convolve(const ConvArgs& a, int64_t task) {
  const int64_t s = task / a.parts, begin = task % a.parts * a.part_channels;
  const int64_t end = begin + a.part_channels < a.channels ? begin + a.part_channels : a.channels;
  const int64_t first = a.steps.query_start_loc[s], last = a.steps.query_start_loc[s + 1];
  const int64_t slot_floats = (a.width - 1) * a.channels, from = a.steps.from[s];
  const Channels<T, kWidth> channels{a, first, from < 0 ? nullptr : a.state + from * slot_floats};
  for (int64_t r = first; r < last; ++r) {
    const int64_t to = a.steps.to[r];
    channels.compute(r, begin, end, to < 0 ? nullptr : a.state + to * slot_floats);
  }
}

}  // namespace

template <class T>
void causal_conv1d(const ConvArgs& a, int64_t task) {
  if (a.width == 4) return convolve<T, 4>(a, task);
  convolve<T, 0>(a, task);
}

template void causal_conv1d<float>(const ConvArgs&, int64_t);
template void causal_conv1d<bf16>(const ConvArgs&, int64_t);
template void causal_conv1d<f16>(const ConvArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
