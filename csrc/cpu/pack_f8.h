// Converts blocks of 8-bit floats (gemm.h shows them) from and to rows.
#pragma once

#include <stdint.h>

#include "gemm.h"

namespace quire {

inline bool is_f8(WeightKind kind) { return kind == kWeightF8E4M3 || kind == kWeightF8E5M2; }
inline int64_t f8_groups(int64_t k, int64_t group) { return group == 0 ? 1 : (k + group - 1) / group; }
inline int64_t f8_block_bytes(int64_t k) { return kBlockRows * ((k + 31) / 32 * 32); }

// Stores k codes as row r of a block.
void pack_f8(const uint8_t* codes, int64_t k, int64_t r, uint8_t* block);

// Row r of a block, as float32 [k]. `scale` points to the row's scale in the first group; each group has
// 32 consecutive scales, one per row.
void read_f8(WeightKind kind, const uint8_t* block, int64_t r, int64_t k, int64_t group,
             const float* scale, float* out);

}  // namespace quire
