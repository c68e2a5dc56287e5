// One vector of floats of the ISA being compiled, with the same vocabulary for all of them:
//
//   Vec, kLanes                  the vector and its width
//   load(p)  load(p, n)          floats from float, bf16, f16 or int8_t; the second reads n < kLanes
//                                elements and leaves the other lanes zero
//   store(p, v)  store(p, v, n)  round to nearest even and write
//   round<T>(v)                  v through T and back
//   as_float(x)                  one float, bf16 or f16, as a float
//   zero broadcast add sub mul div fma max min abs sum largest
//   upper_half(v)                v with the lower 12 bits of the fraction cleared
//   scale2(v, n)                 v · 2^n, rounded once, for integral n from -151 to 129
//   join(folded)                 lane i: sum(v[i]), of kLanes vectors v, where folded[i] is
//                                fold(v + 4 * i)
//   each_vector(n, f)  convert(to, from, n)  loops over rows of any length
//   exponent(v)                  2^(n - 127) with n in the last 8 bits of v's fraction
//   Mask, not_less(a, b), is_nan(v), either, no_lanes; lanes_of(m): bit i is lane i
#pragma once

#include "kernels.h"

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace quire::QUIRE_ISA {
namespace {

inline float as_float(float v) { return v; }
inline float as_float(bf16 v) { return __builtin_bit_cast(float, uint32_t{v.bits} << 16); }
inline float as_float(f16 v) {
  // The exponent moves by multiplication, which is exact and also normalizes subnormals.
  const float scaled = __builtin_bit_cast(float, (v.bits & 0x7fffu) << 13) * 0x1p112f;
  const uint32_t special = (v.bits & 0x7c00u) == 0x7c00 ? 0x7f800000u : 0;
  const uint32_t sign = (v.bits & 0x8000u) << 16;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, scaled) | special | sign);
}

// Calls f(i) for each vector of n elements, and f(i, rest) for those behind the last whole one.
template <class F>
inline void each_vector(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i);
  if (i < n) f(i, n - i);
}

// to[n] = from[n], rounded.
template <class E, class T>
inline void convert(E* to, const T* from, int64_t n) {
  each_vector(n, [&](int64_t i, auto... rest) { store(to + i, load(from + i, rest...), rest...); });
}

}  // namespace
}  // namespace quire::QUIRE_ISA
