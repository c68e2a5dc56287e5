// Packed weights in a file: their regions one after the other, as in memory. Each weight begins at a
// multiple of 64 bytes.
#pragma once

#include <stdint.h>

#include <vector>

#include "packed_weight.h"
#include "pool.h"

namespace quire {

// These functions work on all threads of the pool, begin at `offset`, and return a checksum of the
// bytes, which detects damage but not manipulation. They throw std::system_error: EIO if the file ends
// too early.
uint64_t read_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights);
uint64_t write_packed(Pool& pool, int fd, int64_t offset,
                      const std::vector<PackedWeight*>& weights);
// Like read_packed, but the file is mapped and blocks stay in it (packed_memory.h).
uint64_t map_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights);
// The offset where these weights end if they begin at `offset`.
int64_t packed_end(int64_t offset, const std::vector<PackedWeight*>& weights);

}  // namespace quire
