// Packed weights in a file: their regions one after the other, as they lie in memory.
#pragma once

#include <stdint.h>

#include <vector>

#include "packed_weight.h"
#include "pool.h"

namespace quire {

// Both share the work out on the pool, begin at `offset`, and return a checksum of the bytes, which
// shows damage, not malice. They throw std::system_error; EIO where the file ends too early.
uint64_t read_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights);
uint64_t write_packed(Pool& pool, int fd, int64_t offset,
                      const std::vector<PackedWeight*>& weights);

}  // namespace quire
