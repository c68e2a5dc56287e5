// Memory for packed weights.
#pragma once

#include <stdint.h>

#include <memory>

namespace quire {

class WeightStream;

// Zeroed memory aligned to 64 bytes, on huge pages where Linux has them and it is not small.
//
// Weights of a few megabytes share chunks, one after the other: alone, each would leave a part on
// small pages, which are read a quarter slower, or waste most of a huge one. A chunk is given back
// with the last weight in it, the pages of the others as soon as they go.
class PackedMemory {
 public:
  explicit PackedMemory(int64_t bytes);  // throws std::bad_alloc
  ~PackedMemory();
  PackedMemory(const PackedMemory&) = delete;
  PackedMemory& operator=(const PackedMemory&) = delete;

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Puts the bytes of a file, from `offset` on, a multiple of 64, in the place of these, which are
  // given back. They are read when they are touched, and cannot be written. A file that is cut short
  // later, or cannot be read, ends the process where it is touched. Throws std::system_error.
  void map(int fd, int64_t offset);
  bool mapped() const { return mapping_ != nullptr; }
  // Takes a mapped file's pages out of this process; reading them again maps them again.
  void drop() const;
  // `stream` is told when these bytes are used, under the number `index`.
  void attach(std::shared_ptr<WeightStream> stream, int64_t index);
  // A product is about to read them.
  void use() const;

 private:
  struct Chunk;
  static Chunk* current_;  // where the next weight goes, if it fits

  void release();

  uint8_t* data_;
  int64_t bytes_;
  Chunk* chunk_;
  uint8_t* mapping_ = nullptr;  // the page in which a mapped file's bytes begin
  std::shared_ptr<WeightStream> stream_;
  int64_t index_ = 0;
};

}  // namespace quire
