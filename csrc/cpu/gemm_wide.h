// Products of many rows with a block of two tiles, by AVX-512 instructions that add products of 4 bytes.
//
// 4 bytes of a row of x are read once for a line of each tile. So a pass has two independent sums per
// row, and each pass prefetches its part of the next block. On a Zen 4 core, one pass of twelve rows of
// bf16 reaches 0.97 products per cycle; two passes of six, one tile after the other, reached 0.85. Few
// rows use memory order, in which W is read fastest.
#pragma once

#include "gemm_rows.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kWideRows = 12;   // max rows: their sums, lines of W and x fill the registers
constexpr int kNarrowRows = 6;  // max rows that use one tile after the other

// c[R][2] += x · W. D, the kind of products, has:
//   X                elements of x, kColumns of them in 4 bytes
//   kLineBytes       bytes of a line of W, 16 output rows
//   line(p)          a line as an operand of the instruction
//   add(c, w, x)     adds products to c
template <class D, int R, class Sum>
inline void add_wide(Sum (&c)[R][2], const Pass<typename D::X>& p) {
  constexpr int kLines = 16, kColumns = 4 / sizeof(typename D::X);
  constexpr int64_t kTile = kLines * D::kLineBytes;
  const int64_t fetched = ceil_div(2 * D::kLineBytes, p.passes);
  const uint8_t *line = p.weight, *next = p.next;
  Thirds<R, typename D::X> x(p.x, p.stride);
  for (int64_t i = 0; i < p.k; i += kLines * kColumns, line += kTile) {
    for (int n = 0; n < kLines; ++n, line += D::kLineBytes, next += fetched, x.skip(kColumns)) {
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + 64, 0, 2);
      const __m512i first = D::line(line), second = D::line(line + kTile);
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        int four;
        __builtin_memcpy(&four, x.at(r), sizeof four);
        const __m512i v = _mm512_set1_epi32(four);
        D::add(c[r][0], first, v);
        D::add(c[r][1], second, v);
      }
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
