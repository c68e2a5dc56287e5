// simd.h for AVX-512 (F, BW, DQ, VL): 16 lanes; masks serve the row ends.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace quire::QUIRE_ISA {
namespace {

using Vec = __m512;
constexpr int64_t kLanes = 16;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline float sum(Vec v) { return _mm512_reduce_add_ps(v); }
// 128-bit part i: partial sums of v[0 .. 3] over their lanes 4i .. 4i + 3.
inline Vec fold(const Vec* v) {
  const Vec a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const Vec b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}
inline Vec join(const Vec* folded) {
  const Vec a = _mm512_add_ps(_mm512_shuffle_f32x4(folded[0], folded[1], 0x44),
                              _mm512_shuffle_f32x4(folded[0], folded[1], 0xee));
  const Vec b = _mm512_add_ps(_mm512_shuffle_f32x4(folded[2], folded[3], 0x44),
                              _mm512_shuffle_f32x4(folded[2], folded[3], 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline Vec exponent(Vec v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 23));
}

inline __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

// bf16 is the upper half of a float.
inline Vec widen(bf16, __m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec widen(f16, __m256i bits) { return _mm512_cvtph_ps(bits); }

// A float whose upper half is v rounded to bf16. NaN is kept apart: the carry could make it 0.
inline __m512i round_bf16(Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
}
inline __m256i narrow(bf16, Vec v) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(v), 16));
}
inline __m256i narrow(f16, Vec v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }

inline Vec load(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
inline Vec load(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline Vec load(const int8_t* p, int64_t n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
}

template <class T>
inline Vec load(const T* p) {
  return widen(T{}, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <class T>
inline Vec load(const T* p, int64_t n) {
  return widen(T{}, _mm256_maskz_loadu_epi16(first(n), p));
}
template <class T>
inline void store(T* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(T{}, v));
}
template <class T>
inline void store(T* p, Vec v, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(T{}, v));
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
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(round_bf16(v), upper));
}

// Lane by lane; of max and min, b where either operand is NaN or the two are equal.
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec abs(Vec v) { return _mm512_abs_ps(v); }
inline Vec upper_half(Vec v) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(static_cast<int>(0xfffff000u))));
}
// v - floor(v); 0 of infinities.
inline Vec above_floor(Vec v) { return _mm512_reduce_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline Vec scale2_floor(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }  // v · 2^floor(n)
inline Vec scale2(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }

using Mask = __mmask16;
inline Mask not_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Mask is_nan(Vec v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
inline unsigned lanes_of(Mask m) { return m; }
inline Mask no_lanes() { return 0; }
inline float largest(Vec v) { return _mm512_reduce_max_ps(v); }

}  // namespace
}  // namespace quire::QUIRE_ISA
