// Memory for packed weights.
#pragma once

#include <stdint.h>

#include <memory>

namespace quire {

class FileMemory;
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

  // Replaces this memory by as many bytes of a file from `data` on.
  void map(std::shared_ptr<const FileMemory> file, uint8_t* data, bool streamed);
  // Whether the bytes come from a file at each use, and so take no memory that has to be there.
  bool streamed() const { return streamed_; }
  // Unmaps the pages of streamed bytes from this process; reading maps them again.
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
  std::shared_ptr<const FileMemory> file_;  // has the bytes; null if they are in a chunk
  bool streamed_ = false;
  std::shared_ptr<WeightStream> stream_;
  int64_t index_ = 0;
};

}  // namespace quire
