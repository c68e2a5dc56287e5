// Common code of the two ways to multiply by 8-bit floats (gemm_f8_dot.h, gemm_f8_floats.h).
//
// Each defines
//   X, kMostRows             the type it reads x as, and the maximum rows of a pass
//   in_place(a)              whether it reads x directly, without preparing it
//   most_rows(a)             maximum rows of a pass if not tuned
//   made_ready(row, k)       converts k bfloat16 at the end of a row's memory to a row of X
//   add_block<F8>(sums, b)   sums[b.rows][32] += x · W of a block
#pragma once

#include "gemm_rows.h"
#include "simd_float8.h"

namespace quire::QUIRE_ISA {
namespace {

// A product of some rows of x and one block. Each group of columns has 32 consecutive scales. Without
// groups, all columns count as one group without scales.
template <class X>
struct F8Block {
  const X* x;
  int64_t stride, rows;
  int64_t pass;  // most rows of one
  const uint8_t* weight;
  int64_t ahead;  // bytes from what is read to what is fetched
  int64_t k, group;
  const float* scale;  // [groups][32], or null

  // pass_over(rows, r): passes of rows r … r + rows - 1, as many in each.
  template <class PassOver>
  void each_pass(const PassOver& pass_over) const {
    for (int64_t r = 0, some; r < rows; r += some) {
      some = ceil_div(rows - r, ceil_div(rows - r, pass));
      pass_over(some, r);
    }
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
