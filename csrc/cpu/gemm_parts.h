// The common parts of an ISA's GEMM kernels: sizes, epilogues, conversions of x.
#pragma once

#include "kernels.h"
#include "simd.h"
#include "tiles.h"

namespace quire::QUIRE_ISA {

extern const Gemm kGemmF32, kGemmF16, kGemmBF16, kGemmS8, kGemmS8A16;
extern const Gemm kGemmU2, kGemmU3, kGemmU4, kGemmU4Book, kGemmU5, kGemmU6, kGemmU8;
extern const Gemm kGemmF8E4M3, kGemmF8E5M2;
#if defined(QUIRE_TILES)
extern const Gemm kGemmTilesBF16, kGemmTilesS8, kGemmTilesS8A16, kGemmTilesU2, kGemmTilesU3;
extern const Gemm kGemmTilesU4, kGemmTilesU4Book, kGemmTilesU5, kGemmTilesU6, kGemmTilesU8;
extern const Gemm kGemmTilesF8E4M3, kGemmTilesF8E5M2;
#endif

// gemm_finish.cpp: the epilogue of `rows` rows from r on and the packed rows n0 … n0+31. sums[rows][32]
// get their bias, are rounded, pass through the activation, and are stored if y has the column. `sums`
// is overwritten.
void finish(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums);
// The same for sums that are not scaled yet. Sums of s8_a16 are scaled by W's row. Sums of int8 products,
// at most 32 rows, are scaled by W's row and then by x's row.
void finish_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums);
void finish_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const int32_t* sums);
// The same for sums that are scaled by the product of W's and x's scales; `x_scale` begins at row r.
void finish_scaled(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums,
                   const float* x_scale);

// gemm_input.cpp: one row of x as bf16 in steps of 32, `step_stride` bytes apart; zeros fill the last
// one.
void round_row(const GemmArgs& a, int64_t r, uint8_t* out, int64_t step_stride);
// Quantizes one row to int8 in steps of 64, `step_stride` bytes apart; zeros fill the last one. The
// scale follows the largest |x|, or is a.input_scale, if set, with saturation.
// Returns x / q. If an x is not finite, neither are the result and the row's products.
float quantize_row(const GemmArgs& a, int64_t r, int8_t* q, int64_t step_stride);

namespace {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
// A field of GemmTuning: 0 is the kernel's own value; negative is none.
inline int64_t tuned(int64_t field, int64_t own) { return field == 0 ? own : larger(field, 0); }

// A processor with AVX-512 BF16 and without tiles is a Zen: kernels on tiles call the others with
// `with_hints`. For one or two rows of x, its own
// prefetchers follow W best without hints: int4 came at 58 GB/s on Zen 4, and at 49 with hints. With
// more rows, W is read too slowly for them to see a stream, and hints far ahead help: int4 with two
// rows came at 50 GB/s instead of 32.
#if defined(__AVX512BF16__)
constexpr bool kZen = true;
#else
constexpr bool kZen = false;
#endif
#if defined(QUIRE_NEON)
constexpr bool kNeon = true;
#else
constexpr bool kNeon = false;
#endif
constexpr int64_t kHintsAhead = 4096;  // prefetch distance in bytes
constexpr int64_t kStreamAhead = kZen ? 16384 : kHintsAhead;
// For one or two rows. On Zen 3 with AVX2, W in bf16, int8 and int4 came 1.09, 1.11 and 1.18 times as fast
// as with 4096.
constexpr int64_t kFewRowsAhead = kZen ? 0 : kLanes == 8 ? 1536 : kHintsAhead;

inline GemmArgs with_hints(GemmArgs a) {
  if (a.tuning.ahead_bytes == 0) a.tuning.ahead_bytes = kHintsAhead;
  return a;
}

#if defined(QUIRE_TILES)
constexpr int64_t kPastBytes = 2 << 20;  // of y that no L2 cache keeps

// With the choice whether y is stored past the caches: it is too large to be found in an L2 cache by what
// reads it next, and has whole lines. `part` is a task's rows and packed rows, and room for half lines.
inline GemmArgs past_caches(GemmArgs a, HalfLines part) {
  const int64_t row_bytes = a.y_stride * 2, at = reinterpret_cast<int64_t>(a.y);
  a.past_caches = a.rows * row_bytes >= kPastBytes && row_bytes % 64 == 0 && at % 64 == 0;
  if (!a.past_caches) return a;
  part.from = round_up(part.from, 2 * kBlockRows);
  part.to = smaller(part.to, a.columns * 2) / (2 * kBlockRows) * (2 * kBlockRows);
  a.halves = part;
  return a;
}
#endif

#if defined(__AVX512BF16__)
// 32 int8 as bfloat16, which is exact.
inline __m512 s8_floats(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline __m512bh s8_pairs(const uint8_t* p) {
  return _mm512_cvtne2ps_pbh(s8_floats(p + 16), s8_floats(p));
}
#endif

// Bytes of one quantized row of x.
inline int64_t s8_bytes(const GemmArgs& a) { return round_up(a.k, kStepBytes); }
// s8 scratch: the rows' scales, then the quantized rows.
inline float* x_scales(const GemmArgs& a) { return static_cast<float*>(a.scratch); }
inline int8_t* x_s8(const GemmArgs& a) {
  return static_cast<int8_t*>(a.scratch) + round_up(a.rows * 4, 64);
}
inline int64_t s8_scratch_bytes(const GemmArgs& a) {
  return round_up(a.rows * 4, 64) + a.rows * s8_bytes(a);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
