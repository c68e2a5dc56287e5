// simd.h for any machine: 4 lanes in the compiler's own vectors (SSE2, NEON, ...), no intrinsics but those
// of simd_neon.h.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t kLanes = 4;
typedef float Vec __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(16)));
typedef uint16_t Half __attribute__((vector_size(8)));

inline Bits bits_of(Vec v) { return reinterpret_cast<Bits>(v); }
inline Vec vec_of(Bits b) { return reinterpret_cast<Vec>(b); }
inline Bits all(uint32_t x) { return Bits{x, x, x, x}; }
// Comparisons of vectors yield all ones or all zeros a lane.
inline Bits select(Bits mask, Bits yes, Bits no) { return (mask & yes) | (~mask & no); }

inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec zero() { return broadcast(0.0f); }
inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec mul(Vec a, Vec b) { return a * b; }
inline Vec exponent(Vec v) { return vec_of(bits_of(v) << 23); }

}  // namespace
}  // namespace quire::QUIRE_ISA

#if defined(QUIRE_NEON)
#include "simd_neon.h"
#endif

namespace quire::QUIRE_ISA {
namespace {

#if !defined(QUIRE_NEON)

inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }  // two roundings here
inline float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline Vec fold(const Vec* v) { return Vec{sum(v[0]), sum(v[1]), sum(v[2]), sum(v[3])}; }
inline Vec join(const Vec* folded) { return folded[0]; }
inline float largest(Vec v) {
  const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}

// bf16 is the upper half of a float.
inline Vec widen(bf16, Half h) { return vec_of(__builtin_convertvector(h, Bits) << 16); }

// The exponent moves by multiplication, which is exact and also normalizes f16 subnormals.
inline Vec widen(f16, Half h) {
  const Bits bits = __builtin_convertvector(h, Bits);
  const Vec scaled = vec_of((bits & 0x7fff) << 13) * 0x1p112f;
  const Bits special = reinterpret_cast<Bits>((bits & 0x7c00) == 0x7c00) & all(0x7f800000);
  return vec_of(bits_of(scaled) | special | (bits & 0x8000) << 16);
}

// A float whose upper half is v rounded to bf16. NaN is kept apart: the carry could make it 0.
inline Bits round_bf16(Vec v) {
  const Bits bits = bits_of(v);
  const Bits nan = reinterpret_cast<Bits>(v != v);
  return select(nan, all(0x7fc00000), bits + 0x7fff + ((bits >> 16) & 1));
}
inline Half narrow(bf16, Vec v) { return __builtin_convertvector(round_bf16(v) >> 16, Half); }

inline Half narrow(f16, Vec v) {
  const Bits sign = (bits_of(v) >> 16) & 0x8000;
  const Bits bits = bits_of(v) & 0x7fffffff;
  // Normal: rebias the exponent, then round the 13 lost bits to nearest even.
  const Bits normal = (bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
  // Subnormal (below 2^-14): adding 0.5 lets the FPU round at the right bit.
  const Bits subnormal = bits_of(vec_of(bits) + 0.5f) - all(0x3f000000);
  const Bits is_small = reinterpret_cast<Bits>(bits < (113u << 23));
  const Bits is_large = reinterpret_cast<Bits>(bits >= (143u << 23));  // 65536 and above, NaN
  const Bits is_nan = reinterpret_cast<Bits>(bits > 0x7f800000u);
  const Bits large = select(is_nan, all(0x7e00), all(0x7c00));
  const Bits finite = select(is_small, subnormal, normal);
  return __builtin_convertvector(select(is_large, large, finite) | sign, Half);
}

inline Vec load(const int32_t* p) {
  typedef int32_t Ints __attribute__((vector_size(16)));
  Ints ints;
  __builtin_memcpy(&ints, p, sizeof ints);
  return __builtin_convertvector(ints, Vec);
}
inline Vec load(const int8_t* p) {
  typedef int8_t Bytes __attribute__((vector_size(4)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, Vec);
}

#endif

inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

template <class T>
inline Vec load(const T* p) {
  Half h;
  __builtin_memcpy(&h, p, sizeof h);
  return widen(T{}, h);
}
template <class T>
inline void store(T* p, Vec v) {
  const Half h = narrow(T{}, v);
  __builtin_memcpy(p, &h, sizeof h);
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
  return vec_of(round_bf16(v) & all(0xffff0000));
}

// Lane by lane; of max and min, b where either operand is NaN or the two are equal.
using Mask = Bits;
inline Vec sub(Vec a, Vec b) { return a - b; }
inline Vec div(Vec a, Vec b) { return a / b; }
inline Vec max(Vec a, Vec b) {
  return vec_of(select(reinterpret_cast<Mask>(a > b), bits_of(a), bits_of(b)));
}
inline Vec min(Vec a, Vec b) {
  return vec_of(select(reinterpret_cast<Mask>(a < b), bits_of(a), bits_of(b)));
}
inline Vec abs(Vec v) { return vec_of(bits_of(v) & 0x7fffffff); }
inline Vec upper_half(Vec v) { return vec_of(bits_of(v) & 0xfffff000); }
// In two steps, neither of which leaves the range of normal powers: one rounding.
inline Vec scale2(Vec v, Vec n) {
  typedef int32_t Signed __attribute__((vector_size(16)));
  const Signed whole = reinterpret_cast<Signed>(bits_of(n + 0x1.8p23f) - bits_of(broadcast(0x1.8p23f)));
  const Signed half = whole >> 1;
  return v * vec_of(reinterpret_cast<Bits>(half + 127) << 23) *
         vec_of(reinterpret_cast<Bits>(whole - half + 127) << 23);
}

inline Mask not_less(Vec a, Vec b) { return reinterpret_cast<Mask>(a >= b); }
inline Mask is_nan(Vec v) { return reinterpret_cast<Mask>(v != v); }
inline Mask either(Mask a, Mask b) { return a | b; }
inline unsigned lanes_of(Mask m) {
  return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8);
}
inline Mask no_lanes() { return all(0); }

}  // namespace
}  // namespace quire::QUIRE_ISA
