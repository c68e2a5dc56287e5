#include "packed_memory.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <new>

namespace quire {

namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kChunk = 32 << 20;
constexpr int64_t kShared = 256 << 10;  // smaller ones take small pages of their own
constexpr int64_t kAlign = 64;

std::mutex chunks;  // like malloc's, for engines that load at the same time

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// `size` zeroed bytes, a multiple of the page, aligned to `align`.
uint8_t* map(int64_t size, int64_t align) {
  const int64_t mapped = size + align - sysconf(_SC_PAGESIZE);
  void* memory = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  uint8_t* const start = static_cast<uint8_t*>(memory);
  const int64_t at = reinterpret_cast<int64_t>(start), skip = round_up(at, align) - at;
  if (skip > 0) munmap(start, static_cast<size_t>(skip));
  const int64_t rest = mapped - skip - size;
  if (rest > 0) munmap(start + skip + size, static_cast<size_t>(rest));
  return start + skip;
}

}  // namespace

struct PackedMemory::Chunk {
  uint8_t* data;
  int64_t bytes, used, weights;
};

PackedMemory::Chunk* PackedMemory::current_ = nullptr;

PackedMemory::PackedMemory(int64_t bytes) : bytes_(bytes), chunk_(nullptr) {
  if (bytes < kShared) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    data_ = map(round_up(bytes, page), page);
    return;
  }
  const std::lock_guard<std::mutex> lock(chunks);
  if (current_ == nullptr || current_->used + bytes > current_->bytes) {
    // A page is backed when a weight first touches it, so what is left of the last chunk costs none.
    const int64_t size = round_up(bytes > kChunk ? bytes : kChunk, kHugePage);
    uint8_t* const data = map(size, kHugePage);
#if defined(MADV_HUGEPAGE)
    madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
    current_ = new Chunk{data, size, 0, 0};
  }
  chunk_ = current_;
  data_ = chunk_->data + chunk_->used;
  chunk_->used = round_up(chunk_->used + bytes, kAlign);
  ++chunk_->weights;
}

PackedMemory::~PackedMemory() {
  if (chunk_ == nullptr) {
    munmap(data_, static_cast<size_t>(round_up(bytes_, sysconf(_SC_PAGESIZE))));
    return;
  }
  const std::lock_guard<std::mutex> lock(chunks);
  if (--chunk_->weights > 0) return;
  if (current_ == chunk_) current_ = nullptr;
  munmap(chunk_->data, static_cast<size_t>(chunk_->bytes));
  delete chunk_;
}

}  // namespace quire
