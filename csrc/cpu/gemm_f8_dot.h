// 8-bit floats with the dot instruction of AVX-512 BF16: lanes are output rows, and a product adds two
// columns of x. Every pass decodes W itself, because the shuffles overlap with the products: storing
// decoded W for several passes was not faster.
#pragma once

#include "bf16_dot.h"
#include "gemm_f8_parts.h"

namespace quire::QUIRE_ISA {
namespace {

using X = bf16;
constexpr int kMostRows = 11;     // their sums, and the tables, fill the registers
constexpr int kInPlaceRows = 10;  // more, a power of two apart, take each other's place in the L1 cache

inline bool in_place(const GemmArgs& a) {
  return a.x_dtype == kBFloat16 && a.rows <= 3 * kInPlaceRows && a.k % 32 == 0;
}
inline int64_t most_rows(const GemmArgs& a) { return in_place(a) ? kInPlaceRows : kMostRows; }

inline void made_ready(X*, int64_t) {}

// One pass.
template <class F8, int R>
QUIRE_PASS void add_rows(float* sums, const F8Block<bf16>& b, const bf16* x) {
  const Float8Pairs<F8> table;
  const uint8_t* line = b.weight;
  const int64_t ahead = b.ahead;
  const float* scale = b.scale;
  Thirds<R, bf16> rows(x, b.stride);
  for (int64_t left = b.k; left > 0; left -= b.group) {
    __m512 c[R][2];
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      for (int t = 0; t < 2; ++t) {
        c[r][t] = scale == nullptr ? load(sums + r * kBlockRows + t * 16) : zero();
      }
    }
    const bf16* const end = rows.row[0] + smaller(left, b.group);
    for (; rows.row[0] < end; rows.skip(4)) {
      QUIRE_UNROLL for (int t = 0; t < 2; ++t, line += 64) {
        fetch(line, ahead);
        __m512i pairs[2];
        table.widen(_mm512_loadu_si512(line), pairs[0], pairs[1]);
        QUIRE_UNROLL for (int h = 0; h < 2; ++h) {
          QUIRE_UNROLL for (int r = 0; r < R; ++r) {
            add_products(c[r][t], pairs[h], rows.at(r) + 2 * h);
          }
        }
      }
    }
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      for (int t = 0; t < 2; ++t) {
        float* const to = sums + r * kBlockRows + t * 16;
        store(to, scale == nullptr ? c[r][t] : fma(load(scale + t * 16), c[r][t], load(to)));
      }
    }
    if (scale != nullptr) scale += kBlockRows;
  }
}

template <class F8, int R = kMostRows>
inline void add_pass(int64_t rows, float* sums, const F8Block<bf16>& b, const bf16* x) {
  if constexpr (R > 1) {
    if (rows < R) return add_pass<F8, R - 1>(rows, sums, b, x);
  }
  add_rows<F8, R>(sums, b, x);
}

template <class F8>
void add_block(float* sums, F8Block<bf16> b) {
  b.each_pass([&](int64_t rows, int64_t r) {
    add_pass<F8>(rows, sums + r * kBlockRows, b, b.x + r * b.stride);
  });
}

}  // namespace
}  // namespace quire::QUIRE_ISA
