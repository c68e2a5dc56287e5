// Converts blocks of weights in groups from and to the canonical form (gemm.h shows the block).
//
// Canonical form: each weight has a code q of a fixed number of bits. Each group of `group` consecutive
// weights of a row has a scale and, depending on the kind, a zero point, W = (q - zero) * scale, or an
// offset, W = (q - zero) * scale + offset with one zero for the whole weight. GPTQ and AWQ have zero
// points, Q4_0 has the zero 8 everywhere, Q4_1 has offsets.
//
// In a block scales, offsets and negated zero points are f16 in a unit, a power of two chosen for each
// row so that its largest scale or offset has f16's largest exponent. So values from f16 stay exact,
// values from bf16 too if those of a row differ by less than a factor of 2^32, and values from float32
// are rounded to 11 significant bits.
#pragma once

#include <stdint.h>

#include <vector>

#include "gemm.h"

namespace quire {

// The format of a weight's groups.
struct Grouping {
  WeightKind kind;
  int64_t k, group;
  Second second;
  int32_t zero;
  const uint8_t* codebook;  // of kind u4_book

  int64_t groups() const { return (k + group - 1) / group; }
  int64_t head_bytes() const { return second == kNoSecond ? 64 : 128; }
  int64_t group_bytes() const;
  int64_t block_bytes() const { return groups() * group_bytes(); }
};

// Bits of a code; 0 for kinds without groups.
int code_bits(WeightKind kind);

// The 32 rows of a block in canonical form, initially zero.
struct GroupedRows {
  int64_t k, group, groups;
  std::vector<uint8_t> q;            // [32][groups * group]
  std::vector<float> scale, second;  // [32][groups]; zero points or offsets

  explicit GroupedRows(const Grouping& grouping);
  uint8_t* q_of(int64_t row) { return q.data() + row * groups * group; }
  float* scale_of(int64_t row) { return scale.data() + row * groups; }
  float* second_of(int64_t row) { return second.data() + row * groups; }
};

// Writes a block that was zero, and the rows' units to units[32].
void pack_grouped(const Grouping& grouping, const GroupedRows& rows, uint8_t* block, float* units);

// Row r of a block, as float32 [k].
void read_grouped(const Grouping& grouping, const uint8_t* block, int64_t r, float unit, float* out);

}  // namespace quire
