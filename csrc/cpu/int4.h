// Heads of an int4 KV cache: a Hadamard transform spreads outliers over the head, then each element
// becomes the nearest of 32 (keys) or 16 (values) numbers times the head's scale.
//
//   byte i of a head's codes   elements 2i (low half) and 2i + 1
//   a key's code               number of its size; its sign is bit b of byte i of the signs, of
//                              element 8i + b
//   a value's code             its sign (bit 3), number of its size
//   scale                      a byte: 5 bits of exponent, 3 of mantissa
//
// Attention rotates queries too, which leaves q . k as it is, and rotates its sums back.
#pragma once

#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quire::QUIRE_ISA {
namespace {

// The best levels for normally distributed numbers (Max 1960; Lloyd 1982), in int8.
alignas(16) constexpr int8_t kKeySizes[16] = {2,  6,  9,  13, 17, 22, 27,  32,
                                              38, 44, 52, 61, 71, 84, 101, 127};
alignas(16) constexpr int8_t kValues[16] = {6,  18,  30,  43,  58,  75,  96,  127,
                                            -6, -18, -30, -43, -58, -75, -96, -127};

constexpr uint32_t kScaleZero = 840;  // code 0 as the upper 12 bits of a float: 2^-22
constexpr uint32_t kInfinity = 0x7f800000;

// The scale of a code: 0 is 0, and 255 is NaN.
inline float scale_value(uint8_t code) {
  const uint32_t bits = code == 255 ? kInfinity + 1 : code == 0 ? 0 : (code + kScaleZero) << 20;
  return __builtin_bit_cast(float, bits);
}

// The code of the scale nearest to largest / 127. The largest elements may exceed the last level by a
// sixteenth, and are stored as it.
inline uint8_t nearest_scale(float largest) {
  if (!(largest < __builtin_inff())) return 255;
  const uint32_t bits = (__builtin_bit_cast(uint32_t, largest / 127.0f) + 0x80000) >> 20;
  return static_cast<uint8_t>(bits <= kScaleZero ? 0 : bits > kScaleZero + 254 ? 254 : bits - kScaleZero);
}

typedef float Eight __attribute__((vector_size(32)));

// One step of the transform within eight elements: partners are kStep apart.
template <int kStep>
inline void butterfly(Eight& x) {
  constexpr auto sign = [](int i) { return i & kStep ? -1.0f : 1.0f; };
  constexpr Eight signs = {sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7)};
  const Eight partners =
      __builtin_shufflevector(x, x, 0 ^ kStep, 1 ^ kStep, 2 ^ kStep, 3 ^ kStep, 4 ^ kStep,
                              5 ^ kStep, 6 ^ kStep, 7 ^ kStep);
  x = partners + x * signs;
}

// Multiplies each run of x, as long as the largest power of two that divides dim, by the orthonormal
// Hadamard matrix. The matrix is its own inverse.
__attribute__((noinline)) inline void rotate(float* x, int64_t dim) {
  const int64_t size = dim & -dim;
  const float unit = __builtin_sqrtf(1.0f / static_cast<float>(size));
  int64_t step = 1;
  if (size >= 8) {
    for (int64_t i = 0; i < dim; i += 8) {
      Eight v;
      __builtin_memcpy(&v, x + i, sizeof v);
      butterfly<1>(v);
      butterfly<2>(v);
      butterfly<4>(v);
      __builtin_memcpy(x + i, &v, sizeof v);
    }
    step = 8;
  }
  for (; step < size; step *= 2) {
    for (int64_t i = 0; i < dim; i += 2 * step) {
      for (int64_t j = i; j < i + step; ++j) {
        const float a = x[j], b = x[j + step];
        x[j] = a + b;
        x[j + step] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < dim; ++i) x[i] *= unit;
}

// Stores the codes and the scale of a rotated head; halfway between two levels, the smaller one. Only
// keys have signs.
inline void put_codes(uint8_t* codes, uint8_t* signs, uint8_t* scale, const float* x, int64_t dim) {
  typedef int32_t Eight32 __attribute__((vector_size(32)));
  constexpr int32_t kPlain = 0x7fffffff;  // all but the sign
  uint32_t largest = 0;  // as bits, which have the order of the numbers, with NaN above all
  for (int64_t i = 0; i < dim; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & kPlain;
    largest = bits > largest ? bits : largest;
  }
  *scale = nearest_scale(__builtin_bit_cast(float, largest));
  const float divisor = *scale == 0 ? 1.0f : scale_value(*scale);
  const int8_t* const sizes = signs != nullptr ? kKeySizes : kValues;
  const int count = signs != nullptr ? 16 : 8;
  for (int64_t i = 0; i < dim; i += 8) {
    Eight ratio;
    __builtin_memcpy(&ratio, x + i, sizeof ratio);
    ratio /= divisor;
    const Eight size = (Eight)((Eight32)ratio & kPlain);
    const Eight32 negative = ratio < 0.0f;
    Eight32 number = {};
    for (int c = 1; c < count; ++c) {
      number -= size > 0.5f * static_cast<float>(sizes[c - 1] + sizes[c]);
    }
    if (signs == nullptr) number |= negative & 8;
    uint8_t sign = 0;
    for (int j = 0; j < 8; ++j) sign |= static_cast<uint8_t>((negative[j] & 1) << j);
    if (signs != nullptr) signs[i / 8] = sign;
    for (int j = 0; j < 8; j += 2) {
      codes[(i + j) / 2] = static_cast<uint8_t>(number[j] | number[j + 1] << 4);
    }
  }
}

inline int8_t value_level(const uint8_t* codes, int64_t i) {
  return kValues[codes[i / 2] >> i % 2 * 4 & 15];
}
inline int8_t key_level(const uint8_t* codes, const uint8_t* signs, int64_t i) {
  const int8_t size = kKeySizes[codes[i / 2] >> i % 2 * 4 & 15];
  return static_cast<int8_t>(signs[i / 8] >> i % 8 & 1 ? -size : size);
}

// The levels of `bytes` bytes of codes, a multiple of 32: of keys if there are signs, else of values.
__attribute__((noinline)) inline void unpack(const uint8_t* codes, const uint8_t* signs,
                                             int64_t bytes, int8_t* to) {
#if defined(__AVX2__)
  const __m128i sizes = _mm_load_si128(
      reinterpret_cast<const __m128i*>(signs != nullptr ? kKeySizes : kValues));
#endif
#if defined(__AVX512BW__)
  const __m512i book = _mm512_broadcast_i32x4(sizes);
  for (int64_t i = 0; i < bytes; i += 32) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    const __m512i wide = _mm512_cvtepu8_epi16(both);
    const __m512i halves = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
    __m512i level = _mm512_shuffle_epi8(book, _mm512_and_si512(halves, _mm512_set1_epi8(15)));
    if (signs != nullptr) {
      __mmask64 negative;
      __builtin_memcpy(&negative, signs + i / 4, sizeof negative);
      level = _mm512_mask_sub_epi8(level, negative, _mm512_setzero_si512(), level);
    }
    _mm512_storeu_si512(to + 2 * i, level);
  }
#elif defined(__AVX2__)
  const __m256i book = _mm256_broadcastsi128_si256(sizes);
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  for (int64_t i = 0; i < bytes; i += 16) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m256i wide = _mm256_cvtepu8_epi16(both);
    const __m256i halves = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    __m256i level = _mm256_shuffle_epi8(book, _mm256_and_si256(halves, _mm256_set1_epi8(15)));
    if (signs != nullptr) {
      int32_t bits;
      __builtin_memcpy(&bits, signs + i / 4, sizeof bits);
      const __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of), bit_of);
      const __m256i negative = _mm256_cmpeq_epi8(own, bit_of);
      level = _mm256_sub_epi8(_mm256_xor_si256(level, negative), negative);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * i), level);
  }
#else
  for (int64_t i = 0; i < 2 * bytes; ++i) {
    to[i] = signs != nullptr ? key_level(codes, signs, i) : value_level(codes, i);
  }
#endif
}

}  // namespace
}  // namespace quire::QUIRE_ISA
