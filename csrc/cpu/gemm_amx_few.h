// Products of few rows of int8 with int8 weights, for processors with tiles (gemm_amx.cpp). One row needs a
// sixteenth of a tile's products, and vectors read W faster. Sums are exact: the bits are those of tiles.
#pragma once

#include "gemm_amx_kinds.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t kFewRows = 4;  // most rows that vectors take

// sums[R][32] of R rows of x and a block. Step s of row r is at x + s * step_stride + r * kStepBytes. 128 is
// added to x, which is to be unsigned; what that adds to the sums is taken away in the end.
template <int R>
__attribute__((noinline)) void few_dots(const uint8_t* x, int64_t step_stride, int64_t steps,
                                        const uint8_t* line, int64_t ahead, const int32_t* row_sum,
                                        int32_t* sums) {
  const __m512i sign = _mm512_set1_epi8(-128);
  __m512i c[R][2];
  _Pragma("GCC unroll 16") for (auto& row : c) row[0] = row[1] = _mm512_setzero_si512();
  for (; steps > 0; --steps, x += step_stride) {
    _Pragma("GCC unroll 2") for (int tile = 0; tile < 2; ++tile) {
      for (int64_t i = 0; i < kStepBytes; i += 4, line += 64) {
        __builtin_prefetch(line + ahead, 0, 2);
        const __m512i w = _mm512_loadu_si512(line);
        _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r) {
          int32_t four;
          __builtin_memcpy(&four, x + r * kStepBytes + i, sizeof four);
          const __m512i v = _mm512_xor_si512(_mm512_set1_epi32(four), sign);
          c[r][tile] = _mm512_dpbusd_epi32(c[r][tile], v, w);
        }
      }
    }
  }
  for (int tile = 0; tile < 2; ++tile) {
    const __m512i extra = _mm512_slli_epi32(_mm512_loadu_si512(row_sum + tile * 16), 7);
    _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r) {
      _mm512_storeu_si512(sums + r * kBlockRows + tile * 16, _mm512_sub_epi32(c[r][tile], extra));
    }
  }
}

// few_dots<rows>, 1 <= rows <= R.
template <int R = kFewRows, class... Args>
void rows_dots(int64_t rows, Args... args) {
  if constexpr (R > 1) {
    if (rows < R) return rows_dots<R - 1>(rows, args...);
  }
  few_dots<R>(args...);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
