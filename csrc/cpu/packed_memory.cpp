#include "packed_memory.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "file_memory.h"
#include "sanitizer.h"
#include "weight_stream.h"

namespace quire {

namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kChunk = 32 << 20;
constexpr int64_t kShared = 256 << 10;  // smaller weights get small pages of their own
constexpr int64_t kAlign = 64;

std::mutex chunks;  // several engines may load at the same time

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// `size` zeroed bytes, a multiple of the page size, aligned to `align`. Access is permitted later, when
// parts are handed out.
uint8_t* allocate(int64_t size, int64_t align) {
  const int64_t mapped = size + align - sysconf(_SC_PAGESIZE);
  void* memory = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  uint8_t* const start = static_cast<uint8_t*>(memory);
  const int64_t at = reinterpret_cast<int64_t>(start), skip = round_up(at, align) - at;
  if (skip > 0) munmap(start, static_cast<size_t>(skip));
  const int64_t rest = mapped - skip - size;
  if (rest > 0) munmap(start + skip + size, static_cast<size_t>(rest));
  forbid(start + skip, size);
  return start + skip;
}

void give_back(uint8_t* data, int64_t size) {
  permit(data, size);
  munmap(data, static_cast<size_t>(size));
}

// Bytes of a weight that shares no chunk.
int64_t own_bytes(int64_t bytes) { return round_up(bytes + kGuard, sysconf(_SC_PAGESIZE)); }

}  // namespace

struct PackedMemory::Chunk {
  uint8_t* data;
  int64_t bytes, used, weights;
};

PackedMemory::Chunk* PackedMemory::current_ = nullptr;

PackedMemory::PackedMemory(int64_t bytes) : bytes_(bytes), chunk_(nullptr) {
  if (bytes < kShared) {
    data_ = allocate(own_bytes(bytes), sysconf(_SC_PAGESIZE));
    permit(data_, bytes);
    return;
  }
  const std::lock_guard<std::mutex> lock(chunks);
  if (current_ == nullptr || current_->used + bytes + kGuard > current_->bytes) {
    // The kernel provides a page at its first use, so the rest of the last chunk takes no memory.
    const int64_t size = round_up(std::max(bytes + kGuard, kChunk), kHugePage);
    uint8_t* const data = allocate(size, kHugePage);
#if defined(MADV_HUGEPAGE)
    madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
    current_ = new Chunk{data, size, 0, 0};
  }
  chunk_ = current_;
  data_ = chunk_->data + chunk_->used;
  permit(data_, bytes);
  chunk_->used = round_up(chunk_->used + bytes + kGuard, kAlign);
  ++chunk_->weights;
}

PackedMemory::~PackedMemory() {
  if (stream_ != nullptr) stream_->remove(index_);
  release();
}

void PackedMemory::release() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (file_ != nullptr) return;
  if (chunk_ == nullptr) {
    give_back(data_, own_bytes(bytes_));
    return;
  }
  const std::lock_guard<std::mutex> lock(chunks);
  if (--chunk_->weights > 0) {
    forbid(data_, bytes_);
    const int64_t at = reinterpret_cast<int64_t>(data_);
    const int64_t begin = round_up(at, page), end = (at + bytes_) / page * page;
    if (begin < end) madvise(data_ + (begin - at), static_cast<size_t>(end - begin), MADV_DONTNEED);
    return;
  }
  if (current_ == chunk_) current_ = nullptr;
  give_back(chunk_->data, chunk_->bytes);
  delete chunk_;
}

void PackedMemory::map(std::shared_ptr<const FileMemory> file, uint8_t* data, bool streamed) {
  release();
  chunk_ = nullptr;
  file_ = std::move(file);
  data_ = data;
  streamed_ = streamed;
}

void PackedMemory::drop() const {
  const int64_t inside = reinterpret_cast<int64_t>(data_) % sysconf(_SC_PAGESIZE);
  madvise(data_ - inside, static_cast<size_t>(inside + bytes_), MADV_DONTNEED);
}

void PackedMemory::attach(std::shared_ptr<WeightStream> stream, int64_t index) {
  if (stream_ != nullptr) stream_->remove(index_);
  stream_ = std::move(stream);
  index_ = index;
}

void PackedMemory::use() const {
  if (stream_ != nullptr) stream_->use(index_);
}

}  // namespace quire
