// Heads of a 4-bit KV cache: a Hadamard transform spreads outliers over the head, then each element
// becomes the nearest of 16 numbers times the head's scale.
//
//   byte i of a head holds the codes of elements 2i (low half) and 2i + 1
//
// Attention rotates queries too, which leaves q . k as it is, and rotates its sums back.
#pragma once

#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quire::QUIRE_ISA {
namespace {

// The best 16 levels for normally distributed numbers (Max 1960; Lloyd 1982), in int8.
alignas(16) constexpr int8_t kBook[16] = {-127, -96, -75, -58, -43, -30, -18, -6,
                                          6,    18,  30,  43,  58,  75,  96,  127};

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

// Stores the codes of x / divisor. Halfway between two levels, and for NaN, the lower one counts.
inline void put_codes(uint8_t* to, const float* x, int64_t dim, float divisor) {
  for (int64_t i = 0; i < dim; i += 2) {
    const float low = x[i] / divisor, high = x[i + 1] / divisor;
    int codes = 0;
    for (int c = 0; c < 15; ++c) {
      const float middle = 0.5f * static_cast<float>(kBook[c] + kBook[c + 1]);
      codes += (low > middle ? 1 : 0) + (high > middle ? 16 : 0);
    }
    to[i / 2] = static_cast<uint8_t>(codes);
  }
}

inline int8_t level(const uint8_t* codes, int64_t i) {
  return kBook[codes[i / 2] >> i % 2 * 4 & 15];
}

// The levels of `bytes` bytes of codes, a multiple of 32.
__attribute__((noinline)) inline void unpack(const int8_t* codes, int64_t bytes, int8_t* to) {
#if defined(__AVX512BW__)
  const __m512i book =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kBook)));
  for (int64_t i = 0; i < bytes; i += 32) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    const __m512i wide = _mm512_cvtepu8_epi16(both);
    const __m512i halves = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
    const __m512i each = _mm512_and_si512(halves, _mm512_set1_epi8(15));
    _mm512_storeu_si512(to + 2 * i, _mm512_shuffle_epi8(book, each));
  }
#elif defined(__AVX2__)
  const __m256i book =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kBook)));
  for (int64_t i = 0; i < bytes; i += 16) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m256i wide = _mm256_cvtepu8_epi16(both);
    const __m256i halves = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    const __m256i each = _mm256_and_si256(halves, _mm256_set1_epi8(15));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * i), _mm256_shuffle_epi8(book, each));
  }
#else
  const uint8_t* const from = reinterpret_cast<const uint8_t*>(codes);
  for (int64_t i = 0; i < 2 * bytes; ++i) to[i] = level(from, i);
#endif
}

}  // namespace
}  // namespace quire::QUIRE_ISA
