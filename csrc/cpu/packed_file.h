// Packed weights in a file: their regions one after the other, as in memory. Each weight begins at a
// multiple of 64 bytes.
#pragma once

#include <stdint.h>

#include <vector>

#include "packed_weight.h"
#include "pool.h"

namespace quire {

// Both functions begin at `offset` and return a checksum of the bytes, which detects damage but not
// manipulation. They throw std::system_error: EIO if the file ends too early.
uint64_t write_packed(int fd, int64_t offset, const std::vector<PackedWeight*>& weights);
// Fills the weights, on all threads of the pool. Blocks are where file_memory.h settles them; those of
// streamed weights stay in the file, and nothing of them in memory.
uint64_t map_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights,
                    bool streamed);
// The offset where these weights end if they begin at `offset`.
int64_t packed_end(int64_t offset, const std::vector<PackedWeight*>& weights);

}  // namespace quire
