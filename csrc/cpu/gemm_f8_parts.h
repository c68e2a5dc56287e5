// What the two ways of multiplying by 8-bit floats share (gemm_f8_dot.h, gemm_f8_floats.h).
//
// Each has
//   X, kMostRows             what it reads x as, and most rows of a pass
//   in_place(a)              whether it reads x where it is
//   most_rows(a)             those of a pass, unless tuned
//   made_ready(row, k)       k bfloat16 at the end of a row's place become a row of X
//   add_block<F8>(sums, b)   sums[b.rows][32] += x · W of a block
#pragma once

#include "gemm_rows.h"
#include "simd_float8.h"

namespace quire::QUIRE_ISA {
namespace {

// Some rows of x against one block. A group of columns has 32 scales, which lie together; without
// groups there is one of all columns, and no scale.
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
