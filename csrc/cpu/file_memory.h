// Bytes of a file in memory.
#pragma once

#include <stdint.h>

#include <atomic>

namespace quire {

// A mapped part of a file, which cannot be written. If the file is truncated later or cannot be read,
// touching it ends the process.
class FileMemory {
 public:
  static constexpr int64_t kWindow = 2 << 20;  // of the file; a huge page

  // Maps these bytes, aligned so that huge pages of the system's cache can be mapped as such. They are
  // read when they are touched. Throws std::system_error.
  FileMemory(int fd, int64_t offset, int64_t bytes);
  ~FileMemory();
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  // The byte at this offset of the file.
  uint8_t* at(int64_t offset) const { return data_ + (offset - begin_); }

  // Reads the bytes of the window that begins at this offset of the file, a multiple of kWindow. Bytes
  // that the system has on a huge page stay there: that takes neither time nor memory. Small pages are
  // dropped and read anew. If they stay small, they would be read a sixth slower again and again, so
  // they are copied to memory of this process.
  // Returns 0 or an error code. Threads may call it at the same time, each for its own window.
  int settle(int fd, int64_t window);

 private:
  uint8_t *area_, *data_;     // reserved addresses, and where the part begins
  int64_t reserved_, begin_, bytes_;
  int pages_;                 // tells which pages are huge; -1 if nothing does
  std::atomic<bool> rereads_{true};

  // Both return whether the bytes are mapped on huge pages then.
  bool populate(uint8_t* data, int64_t size);
  bool populate_again(int fd, int64_t from, uint8_t* data, int64_t size);
};

}  // namespace quire
