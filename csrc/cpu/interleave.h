// Rows of a weight put to their places in a block of 32 (gemm.h draws it).
#pragma once

#include <stdint.h>

#include "gemm.h"

namespace quire {

// Of values that come in steps of 64 bytes a row, 4 bytes of each row a line: a step at a time, so that
// what is read and what is written are in the L1 cache.
void interleave(uint8_t* block, const uint8_t* const* rows, int64_t steps);

// Of 4-byte values in the order [k][32 rows].
void interleave_f32(uint8_t* block, const uint8_t* const* rows, int64_t k);

// Of values of 2 bytes: `lines` of them, one of each of `width` rows in a line; the lines of the
// next rows follow after `lines` of these.
void interleave_16(uint8_t* out, const uint8_t* const* rows, int64_t at, int64_t lines,
                   int64_t width);

}  // namespace quire
