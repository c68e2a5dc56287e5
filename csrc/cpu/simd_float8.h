// Vectors of 8-bit floats, F8 being f8_e4m3 or f8_e5m2:
//
//   load(p)  load(p, n)     floats, as simd.h has it
//   widen8<F8>(top)         floats from the codes in the uppermost bytes of 32-bit lanes
//   to_float8<F8>(x)        the code nearest to a float: ties to even, at most the largest finite one;
//                           NaN stays NaN
//   Float8Pairs<F8>         64 codes → bfloat16, where there is VBMI
#pragma once

#include "float8.h"
#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

// In the upper half of a float a code's magnitude bits stand kShift lower than in the byte: then the
// float is kUnit times too small, which one product mends, subnormals with the others.
template <class F8>
struct Float8Bits {
  static constexpr int kShift = 1 + Float8<F8>::kFraction;
  static constexpr int kMagnitude = 0x7f << (24 - kShift);
  static constexpr int kMask = static_cast<int>(0x80000000u) | kMagnitude;
  static constexpr int kLargest = Float8<F8>::kLargest << (24 - kShift);
  static constexpr float kUnit = Float8<F8>::kBias == 7 ? 0x1p120f : 0x1p112f;
};
constexpr int kNoNumber = 0x7f800000;  // the exponent of infinity and NaN

#if defined(__AVX512F__)

template <class F8>
inline Vec widen8(__m512i top) {
  using B = Float8Bits<F8>;
  const __m512i bits =
      _mm512_and_si512(_mm512_srai_epi32(top, B::kShift), _mm512_set1_epi32(B::kMask));
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(B::kMagnitude));
  const __mmask16 special = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(B::kLargest));
  const __m512i v = _mm512_castps_si512(mul(_mm512_castsi512_ps(bits), broadcast(B::kUnit)));
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(v, special, v, _mm512_set1_epi32(kNoNumber)));
}
inline __m512i tops(__m128i bytes) {
  return _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 24);
}
inline __m128i bytes_at(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline __m128i bytes_at(const void* p, int64_t n) { return _mm_maskz_loadu_epi8(first(n), p); }

#elif defined(__AVX2__)

template <class F8>
inline Vec widen8(__m256i top) {
  using B = Float8Bits<F8>;
  const __m256i bits =
      _mm256_and_si256(_mm256_srai_epi32(top, B::kShift), _mm256_set1_epi32(B::kMask));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(B::kMagnitude));
  const __m256i special = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(B::kLargest));
  const Vec v = mul(_mm256_castsi256_ps(bits), broadcast(B::kUnit));
  const __m256i more = _mm256_and_si256(special, _mm256_set1_epi32(kNoNumber));
  return _mm256_or_ps(v, _mm256_castsi256_ps(more));
}
inline __m256i tops(__m128i bytes) {
  return _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 24);
}
inline __m128i bytes_at(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}
inline __m128i bytes_at(const void* p, int64_t n) {
  uint8_t buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<const uint8_t*>(p)[i];
  return bytes_at(buffer);
}

#else

template <class F8>
inline Vec widen8(Bits top) {
  using B = Float8Bits<F8>;
  typedef int32_t Ints4 __attribute__((vector_size(16)));
  const Bits bits = reinterpret_cast<Bits>(reinterpret_cast<Ints4>(top) >> B::kShift) &
                    static_cast<uint32_t>(B::kMask);
  const Bits magnitude = bits & static_cast<uint32_t>(B::kMagnitude);
  const Bits special = reinterpret_cast<Bits>(magnitude > static_cast<uint32_t>(B::kLargest));
  return vec_of(bits_of(vec_of(bits) * B::kUnit) | (special & all(kNoNumber)));
}
inline Bits tops(Bits bytes) { return bytes << 24; }
inline Bits bytes_at(const void* p, int64_t n = kLanes) {
  Bits bytes{};
  for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<const uint8_t*>(p)[i];
  return bytes;
}

#endif

inline Vec load(const f8_e4m3* p) { return widen8<f8_e4m3>(tops(bytes_at(p))); }
inline Vec load(const f8_e5m2* p) { return widen8<f8_e5m2>(tops(bytes_at(p))); }
inline Vec load(const f8_e4m3* p, int64_t n) { return widen8<f8_e4m3>(tops(bytes_at(p, n))); }
inline Vec load(const f8_e5m2* p, int64_t n) { return widen8<f8_e5m2>(tops(bytes_at(p, n))); }

// Without branches, so that a loop of it becomes vectors.
template <class F8>
inline uint8_t to_float8(float x) {
  using F = Float8<F8>;
  constexpr int kCut = 23 - F::kFraction;                              // fraction bits that go
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - F::kBias) << F::kFraction;
  constexpr uint32_t kNormal = static_cast<uint32_t>(128 - F::kBias) << 23;  // the smallest one
  // Added to a subnormal, it leaves its fraction, rounded, in the lowest bits.
  constexpr uint32_t kAdded = static_cast<uint32_t>(128 - F::kBias + kCut) << 23;
  constexpr uint32_t kMost = __builtin_bit_cast(uint32_t, F::kMost);
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  const uint32_t held = magnitude < kMost ? magnitude : kMost;
  const uint32_t odd = held >> kCut & 1;
  const uint32_t normal = ((held + (1u << (kCut - 1)) - 1 + odd) >> kCut) - kRebias;
  const float moved =
      __builtin_bit_cast(float, held) + __builtin_bit_cast(float, kAdded);
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, moved) - kAdded;
  const uint32_t code = held < kNormal ? subnormal : normal;
  return static_cast<uint8_t>(sign | (magnitude > 0x7f800000 ? 0x7f : code));
}

#if defined(__AVX512VBMI__)

template <class F8>
struct Float8Table {
  alignas(64) uint8_t low[128], high[128];  // of bfloat16, by magnitude

  constexpr Float8Table() : low{}, high{} {
    for (int m = 0; m < 128; ++m) {
      low[m] = static_cast<uint8_t>(float8_bf16<F8>(m) & 0xff);
      high[m] = static_cast<uint8_t>(float8_bf16<F8>(m) >> 8);
    }
  }
};
template <class F8>
constexpr Float8Table<F8> kFloat8Table{};

template <class F8>
struct Float8Pairs {
  __m512i low[2], high[2];

  Float8Pairs() {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(kFloat8Table<F8>.low + i * 64);
      high[i] = _mm512_load_si512(kFloat8Table<F8>.high + i * 64);
    }
  }
  // Of every 16 codes the first 8 in one vector, the others in the second.
  void widen(__m512i codes, __m512i& first8, __m512i& last8) const {
    const __m512i sign = _mm512_set1_epi8(-128);
    const __m512i lower = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i upper = _mm512_ternarylogic_epi32(
        _mm512_permutex2var_epi8(high[0], codes, high[1]), codes, sign, 0xf8);  // a | (b & c)
    first8 = _mm512_unpacklo_epi8(lower, upper);
    last8 = _mm512_unpackhi_epi8(lower, upper);
  }
};

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
