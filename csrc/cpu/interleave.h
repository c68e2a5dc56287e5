// Interleaves rows of a weight into a block of 32 rows (gemm.h shows it).
#pragma once

#include <stdint.h>

#include "gemm.h"

namespace quire {

// For values in steps of 64 bytes per row; a line gets 4 bytes of each row. Works on one step at a time,
// so that its reads and writes stay in the L1 cache.
void interleave(uint8_t* block, const uint8_t* const* rows, int64_t steps);

// Writes 4-byte values in the order [k][32 rows].
void interleave_f32(uint8_t* block, const uint8_t* const* rows, int64_t k);

// For 2-byte values: writes `lines` lines with one value of each of `width` rows, then the lines of the
// next `width` rows.
void interleave_16(uint8_t* out, const uint8_t* const* rows, int64_t at, int64_t lines,
                   int64_t width);

}  // namespace quire
