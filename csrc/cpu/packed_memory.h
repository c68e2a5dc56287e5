// Memory for packed weights.
#pragma once

#include <stdint.h>

#include <memory>

namespace quire {

class WeightStream;

// Zeroed memory aligned to 64 bytes, on huge pages if Linux has them and the size is not small.
//
// Weights of a few megabytes share chunks. Alone, each would have a part on small pages, which are read a
// quarter slower, or waste most of a huge page. A chunk is freed with its last weight; the pages of the
// others are freed immediately.
class PackedMemory {
 public:
  explicit PackedMemory(int64_t bytes);  // throws std::bad_alloc
  ~PackedMemory();
  PackedMemory(const PackedMemory&) = delete;
  PackedMemory& operator=(const PackedMemory&) = delete;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Replaces this memory by the mapped bytes of a file from `offset` on, a multiple of 64. They are read
  // when they are touched, and cannot be written. If the file is truncated later or cannot be read,
  // touching it ends the process. Throws std::system_error.
  void map(int fd, int64_t offset);
  bool mapped() const { return mapping_ != nullptr; }
  // Unmaps a mapped file's pages from this process; reading maps them again.
  void drop() const;
  // Reports every use of these bytes to `stream`, with the number `index`.
  void attach(std::shared_ptr<WeightStream> stream, int64_t index);
  // Called before a product reads them.
  void use() const;

 private:
  struct Chunk;
  static Chunk* current_;  // chunk for the next weight, if it fits

  void release();

  uint8_t* data_;
  int64_t bytes_;
  Chunk* chunk_;
  uint8_t* mapping_ = nullptr;  // first page of a mapped file
  std::shared_ptr<WeightStream> stream_;
  int64_t index_ = 0;
};

}  // namespace quire
