// The 8-bit float formats, without arithmetic of an ISA. Each of their values is a normal bfloat16, zero,
// infinity or NaN.
#pragma once

#include "dtype.h"

namespace quire {

template <class F8>
struct Float8;

template <>
struct Float8<f8_e4m3> {
  static constexpr int kFraction = 3;  // bits
  static constexpr int kBias = 7;
  static constexpr int kLargest = 0x7e;  // the largest finite magnitude's code
  static constexpr float kMost = 448.0f;  // its value
};

template <>
struct Float8<f8_e5m2> {
  static constexpr int kFraction = 2;
  static constexpr int kBias = 15;
  static constexpr int kLargest = 0x7b;
  static constexpr float kMost = 57344.0f;
};

// The bits of a magnitude's value as bfloat16.
template <class F8>
constexpr uint16_t float8_bf16(int magnitude) {
  constexpr int kUp = 7 - Float8<F8>::kFraction, kOffset = 127 - Float8<F8>::kBias;
  int exponent = magnitude >> Float8<F8>::kFraction;
  int fraction = (magnitude << kUp) & 0x7f;
  if (magnitude > Float8<F8>::kLargest) return static_cast<uint16_t>(0x7f80 | fraction);
  if (magnitude == 0) return 0;
  if (exponent == 0) {  // subnormal: the leading one moves to where it is implied
    exponent = 1;
    while ((fraction & 0x80) == 0) {
      fraction <<= 1;
      --exponent;
    }
    fraction &= 0x7f;
  }
  return static_cast<uint16_t>((exponent + kOffset) << 7 | fraction);
}

}  // namespace quire
