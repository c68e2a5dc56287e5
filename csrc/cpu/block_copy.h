// KV blocks to rows of host memory and back, with a checksum.
#pragma once

#include <stdint.h>

#include <vector>

#include "pool.h"

namespace quire {

// A tensor of blocks: each is `bytes` in one piece, `stride` bytes from the one before.
struct BlockPart {
  uint8_t* data;
  int64_t bytes, stride;
};

// Between a block of every part and a row, which holds them one after the other.
struct BlockMove {
  int64_t block;
  uint8_t* row;
  uint64_t seed;      // of the checksum
  uint64_t checksum;  // of what was copied
};

// Copies into the rows, or, with `load`, into the blocks. A move is a task, and reads its bytes once.
void copy_blocks(Pool& pool, const std::vector<BlockPart>& parts, std::vector<BlockMove>& moves,
                 bool load);

}  // namespace quire
