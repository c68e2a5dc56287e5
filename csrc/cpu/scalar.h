// Conversion of single numbers between formats, only for baseline code: kernels use simd.h.
#pragma once

#include <bit>

#include "dtype.h"

namespace quire {

inline float to_float(float v) { return v; }
inline float to_float(bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }
inline float to_float(f16 v) {
  const uint32_t sign = uint32_t{v.bits} >> 15 << 31, magnitude = v.bits & 0x7fffu;
  // The exponent moves by multiplication, which is exact and also normalizes subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00 ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline uint16_t to_bf16(bf16 v) { return v.bits; }
template <class T>
inline uint16_t to_bf16(T value) {
  const float v = to_float(value);
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(v != v ? 0x7fc0 : rounded);
}

// Rounds to nearest even; values beyond the largest finite one become infinity.
inline uint16_t to_f16(f16 v) { return v.bits; }
template <class T>
inline uint16_t to_f16(T v) {
  const uint32_t bits = std::bit_cast<uint32_t>(to_float(v)), magnitude = bits & 0x7fffffff;
  uint32_t half = magnitude > 0x7f800000 ? 0x7e00u : 0x7c00u;
  if (magnitude < 113u << 23) {  // subnormal: adding 0.5 lets the addition round at the right bit
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else if (magnitude < 143u << 23) {
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return static_cast<uint16_t>(half | bits >> 31 << 15);
}

}  // namespace quire
