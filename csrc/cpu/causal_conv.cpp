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
    each_vector(end - begin, [&](int64_t at, auto... rest) {
      const int64_t c = begin + at;
      Vec y = bias == nullptr ? zero() : load(bias + c, rest...);
      for (int64_t i = 0; i < width; ++i) {
        Vec x = zero();
        if (i >= kept) {
          x = load(rows[i] + c, rest...);
          if (kind == kConvGated) x = round<T>(mul(x, load(rows[i] + c + 2 * channels, rest...)));
        } else if (state[i] != nullptr) {
          x = load(state[i] + c, rest...);
        }
        y = fma(load(weight + i * channels + c, rest...), x, y);
        if (to != nullptr && i > 0) store(to + (i - 1) * channels + c, x, rest...);
      }
      if (kind == kConvSilu) y = times_sigmoid(y, y);
      if (kind == kConvGated) y = mul(y, load(row + channels + c, rest...));
      store(out + c, y, rest...);
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
