// simd.h for AVX2 with FMA and F16C: 8 lanes; row ends pass through a small buffer.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace quire::QUIRE_ISA {
namespace {

using Vec = __m256;
constexpr int64_t kLanes = 8;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline float sum(Vec v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline Vec fold(const Vec* v) {
  return _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
}
inline Vec join(const Vec* folded) {
  return _mm256_add_ps(_mm256_permute2f128_ps(folded[0], folded[1], 0x20),
                       _mm256_permute2f128_ps(folded[0], folded[1], 0x31));
}
inline Vec exponent(Vec v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23));
}

// bf16 is the upper half of a float.
inline Vec widen(bf16, __m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec widen(f16, __m128i bits) { return _mm256_cvtph_ps(bits); }

// A float whose upper half is v rounded to bf16. NaN is kept apart: the carry could make it 0.
inline __m256i round_bf16(Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan);
}
inline __m128i narrow(bf16, Vec v) {
  const __m256i bits = _mm256_srli_epi32(round_bf16(v), 16);
  const __m256i packed = _mm256_packus_epi32(bits, bits);  // within each 128-bit half
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
inline __m128i narrow(f16, Vec v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }

inline Vec load(const int32_t* p) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

template <class T>
inline Vec load(const T* p) {
  return widen(T{}, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <class T>
inline void store(T* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(T{}, v));
}

template <class T>
inline Vec load(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  T buffer[kLanes];
  store(buffer, v);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

template <class T>
inline Vec round(Vec v) {
  return widen(T{}, narrow(T{}, v));
}
template <>
inline Vec round<float>(Vec v) {
  return v;
}
template <>
inline Vec round<bf16>(Vec v) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(round_bf16(v), upper));
}

// Lane by lane; of max and min, b where either operand is NaN or the two are equal.
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec abs(Vec v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
inline Vec upper_half(Vec v) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xfffff000u));
  return _mm256_and_ps(v, _mm256_castsi256_ps(mask));
}
// In two steps, neither of which leaves the range of normal powers: one rounding.
inline Vec power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline Vec scale2(Vec v, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return mul(mul(v, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}

using Mask = __m256;
inline Mask not_less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
inline Mask is_nan(Vec v) { return _mm256_cmp_ps(v, v, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
inline unsigned lanes_of(Mask m) { return static_cast<unsigned>(_mm256_movemask_ps(m)); }
inline Mask no_lanes() { return zero(); }
inline float largest(Vec v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

}  // namespace
}  // namespace quire::QUIRE_ISA
