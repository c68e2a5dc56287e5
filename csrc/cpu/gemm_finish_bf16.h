// The epilogue of a product in bf16, for processors with instructions for it: sums are scaled, rounded,
// activated and rounded again in registers. Beside tiles each vector instruction counts.
#pragma once

#include "activation_math.h"
#include "gemm_parts.h"

#if defined(__AVX512BF16__)

namespace quire::QUIRE_ISA {
namespace {

// The instruction for bf16 treats subnormal floats as zero. That is acceptable for sums of products, but
// not for results of activations.
inline __m256i fast_bf16(Vec v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
inline __m256i exact_bf16(Vec v) {
  constexpr int kSubnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask(v, kSubnormal) != 0, 0)) return narrow(bf16{}, v);
  return fast_bf16(v);
}
inline void put_lanes(bf16* y, __m256i bits, int64_t n) {
  _mm256_mask_storeu_epi16(y, n >= kLanes ? 0xffff : first(n), bits);
}

// 32 products of a row, rounded to bf16.
struct RoundedPair {
  Vec low, high;

  RoundedPair(Vec a, Vec b) {
    const __m512i pair = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    low = floats(pair, 0);
    high = floats(pair, 32);
  }

 private:
  // bf16 is the upper half of a float: bytes 2 and 3 of lane i are bytes `from` + 2 i and 2 i + 1.
  static Vec floats(__m512i pair, char from) {
    const __m512i eight = _mm512_set_epi64(
        0x0f0e'0000'0d0c'0000, 0x0b0a'0000'0908'0000, 0x0706'0000'0504'0000, 0x0302'0000'0100'0000,
        0x0f0e'0000'0d0c'0000, 0x0b0a'0000'0908'0000, 0x0706'0000'0504'0000, 0x0302'0000'0100'0000);
    const __m512i upper = _mm512_set_epi64(
        0x1010'1010'1010'1010, 0x1010'1010'1010'1010, 0x1010'1010'1010'1010, 0x1010'1010'1010'1010, 0, 0,
        0, 0);
    const __m512i order = _mm512_add_epi8(_mm512_add_epi8(eight, upper), _mm512_set1_epi8(from));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi8(0xcccc'cccc'cccc'cccc, order, pair));
  }
};

constexpr int64_t kActivatedRows = 8;

// out[rows][32], or [rows][16] of a gated one.
template <class F, bool is_gated, class Sums>
void activate_as(const float* bias, int64_t rows, const Sums& sums, bf16* out) {
  for (int64_t i = 0; i < rows; ++i, out += is_gated ? kLanes : 2 * kLanes) {
    Vec low = sums.of(i, 0), high = sums.of(i, kLanes);
    if (bias != nullptr) {
      low = add(low, load(bias));
      high = add(high, load(bias + kLanes));
    }
    const RoundedPair x(low, high);
    __m256i* const to = reinterpret_cast<__m256i*>(out);
    if constexpr (is_gated) {
      _mm256_storeu_si256(to, exact_bf16(F::of(x.low, x.high)));
    } else {
      _mm256_storeu_si256(to, exact_bf16(F::of(x.low)));
      _mm256_storeu_si256(to + 1, exact_bf16(F::of(x.high)));
    }
  }
}

template <class Sums>
void activate_as(int epilogue, const float* bias, int64_t rows, const Sums& sums, bf16* out) {
  switch (epilogue) {
#define QUIRE_ACTIVATE(code, name, F, gated) \
  case code: return activate_as<F<bf16>, gated>(bias, rows, sums, out);
    QUIRE_ACTIVATIONS(QUIRE_ACTIVATE)
#undef QUIRE_ACTIVATE
    default: return;
  }
}

// Stores whole lines past the caches: rows of 32 results, or of the 16 of two blocks each.
inline void stream_line(bf16* y, const bf16* low, const bf16* high) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high));
  _mm512_stream_si512(reinterpret_cast<__m512i*>(y), _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
}

// With an activation, which a.epilogue names.
template <class Sums>
void put_activated(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const Sums& all) {
  const bool gated = kGatedEpilogues[a.epilogue];
  const int64_t width = gated ? kLanes : kBlockRows;
  const int64_t column = n0 / kBlockRows * width, cols = smaller(width, a.columns - column);
  const bool paired = gated && n0 >= a.halves.from && n0 < a.halves.to;
  const bool waits = paired && n0 % (2 * kBlockRows) == 0;
  const float* const bias = a.bias == nullptr ? nullptr : a.bias + n0;
  alignas(64) bf16 results[kActivatedRows * kBlockRows];
  Sums sums = all;
  for (; rows > 0; rows -= kActivatedRows, r += kActivatedRows, sums.skip(kActivatedRows)) {
    const int64_t some = smaller(rows, kActivatedRows);
    bf16* const held = paired ? a.halves.rows + (r - a.halves.first) * kLanes : nullptr;
    const bf16* out = waits ? held : results;
    activate_as(a.epilogue, bias, some, sums, waits ? held : results);
    if (waits) continue;
    bf16* y = static_cast<bf16*>(a.y) + r * a.y_stride + column;
    for (int64_t i = 0; i < some; ++i, y += a.y_stride, out += width) {
      if (paired) {
        stream_line(y - kLanes, held + i * kLanes, out);
      } else if (a.past_caches && cols == kBlockRows) {
        stream_line(y, out, out + kLanes);
      } else {
        for (int64_t j = 0; j < cols; j += kLanes) {
          put_lanes(y + j, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(out + j)), cols - j);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA

#endif
