// Packed weights in a file: their regions one after the other, as they lie in memory, each weight
// from a multiple of 64 bytes on.
#pragma once

#include <stdint.h>

#include <vector>

#include "packed_weight.h"
#include "pool.h"

namespace quire {

// All share the work out on the pool, begin at `offset`, and return a checksum of the bytes, which
// shows damage, not malice. They throw std::system_error; EIO where the file ends too early.
uint64_t read_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights);
uint64_t write_packed(Pool& pool, int fd, int64_t offset,
                      const std::vector<PackedWeight*>& weights);
// As read_packed, but blocks stay in the file, which is mapped (packed_memory.h).
uint64_t map_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights);
// Where weights as large as these end, that begin at `offset`.
int64_t packed_end(int64_t offset, const std::vector<PackedWeight*>& weights);

}  // namespace quire
