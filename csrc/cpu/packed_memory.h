// Memory for packed weights.
#pragma once

#include <stdint.h>

namespace quire {

// Zeroed memory aligned to 64 bytes, on huge pages where Linux has them and it is not small.
//
// Weights of a few megabytes share chunks, one after the other: alone, each would leave a part on
// small pages, which are read a quarter slower, or waste most of a huge one. A chunk is given back
// with the last weight in it.
class PackedMemory {
 public:
  explicit PackedMemory(int64_t bytes);  // throws std::bad_alloc
  ~PackedMemory();
  PackedMemory(const PackedMemory&) = delete;
  PackedMemory& operator=(const PackedMemory&) = delete;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Chunk;
  static Chunk* current_;  // where the next weight goes, if it fits

  uint8_t* data_;
  int64_t bytes_;
  Chunk* chunk_;
};

}  // namespace quire
