// Weighted sums of bytes, with which csrc/images resizes: rounded and clamped as Pillow does.
#pragma once

#include <stdint.h>

namespace quire {

constexpr int kResizeBits = 22;  // weights are integers, of which 2^22 stand for one
constexpr int64_t kResizeRows = 4;

struct ResizeKernels {
  // out[j] = sum over i < taps of weights[i] * in[i * stride + j], for j < n.
  void (*lines)(const uint8_t* in, int64_t stride, const int32_t* weights, int64_t taps, uint8_t* out,
                int64_t n);
  // wide[4 * (kResizeRows * x + row) + channel] = the bytes of kResizeRows lines of `width` pixels.
  void (*widen)(const uint8_t* const* lines, int64_t width, int32_t* wide);
  // One pixel of kResizeRows lines: the sum over i < taps of weights[i] times pixel i of `wide`.
  void (*pixel)(const int32_t* wide, const int32_t* weights, int64_t taps, uint8_t* const* out);
};

}  // namespace quire
