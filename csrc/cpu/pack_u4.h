// Blocks of 4-bit weights: from and to the canonical form (gemm.h draws the block).
//
// Canonical: q in 0 … 15 for each weight, and for each group of `group` consecutive weights of a row
// a scale and either a zero point, W = (q - zero) * scale, or an offset, W = q * scale + offset.
// GPTQ and AWQ have zero points, Q4_0 has 8, Q4_1 has offsets.
//
// In a block scales, offsets and negated zero points are f16, in units of a power of two that each
// row has for itself: its largest scale or offset has f16's largest exponent. So values that come
// from f16 are kept exactly, those from bf16 too if a row's differ by less than 2^32, and float32
// is rounded to 11 significant bits.
#pragma once

#include <stdint.h>

#include <vector>

#include "gemm.h"

namespace quire {

int64_t u4_block_bytes(int64_t k, int64_t group);

// The 32 rows of a block in canonical form, zeros at first.
struct U4Rows {
  int64_t k, group, groups;
  bool zero_points;
  std::vector<uint8_t> q;            // [32][groups * group]
  std::vector<float> scale, second;  // [32][groups]; zero points or offsets

  U4Rows(int64_t columns, int64_t group_size, bool has_zero_points);
  uint8_t* q_of(int64_t row) { return q.data() + row * groups * group; }
  float* scale_of(int64_t row) { return scale.data() + row * groups; }
  float* second_of(int64_t row) { return second.data() + row * groups; }
};

// Writes a block, and to units[32] the rows' powers of two.
void pack_u4(const U4Rows& rows, uint8_t* block, float* units);

// Row r of a block, as float32 [k].
void read_u4(const uint8_t* block, int64_t r, int64_t k, int64_t group, bool zero_points, float unit,
             float* out);

}  // namespace quire
