#include "weight_stream.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace quire {

namespace {

constexpr int64_t kNothing = -1, kEnd = -2;
constexpr int64_t kPiece = 4 << 20;      // asked for at once, and then waited for
constexpr int64_t kRequest = 128 << 10;  // the system reads no more ahead for one request
constexpr int64_t kSampleBytes = 1 << 20;

const int64_t kPage = sysconf(_SC_PAGESIZE);

uint8_t* page_of(uint8_t* at) {
  return at - reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(kPage);
}

int advise(uint8_t* begin, uint8_t* end, int advice) {
  return madvise(begin, static_cast<size_t>(end - begin), advice);
}

// Whether the system has a page in every MiB in memory.
bool is_cached(const WeightStream::Stretch& s) {
  for (int64_t at = 0; at < s.bytes; at += kSampleBytes) {
    unsigned char resident = 0;
    if (mincore(page_of(s.data + at), 1, &resident) != 0 || (resident & 1) == 0) return false;
  }
  return true;
}

// Waits until the pages are there.
void populate(uint8_t* begin, uint8_t* end) {
  for (uint8_t* at = begin; at < end; at += kRequest) {
    advise(at, std::min(at + kRequest, end), MADV_WILLNEED);
  }
#if defined(MADV_POPULATE_READ)
  if (advise(begin, end, MADV_POPULATE_READ) == 0 || errno != EINVAL) return;
#endif
  for (uint8_t* at = begin; at < end; at += kPage) *static_cast<volatile uint8_t*>(at);
}

}  // namespace

WeightStream::WeightStream(std::vector<Stretch> stretches, int64_t ahead_bytes, bool give_back)
    : stretches_(std::move(stretches)), touched_(stretches_.size()),
      read_(stretches_.size(), false), ahead_bytes_(ahead_bytes), give_back_(give_back),
      current_(kNothing), thread_([this] { run(); }) {}

WeightStream::~WeightStream() {
  current_.store(kEnd);
  current_.notify_one();
  thread_.join();
}

void WeightStream::use(int64_t index) {
  // The thread may sleep through this: what a product reads has to be given back all the same.
  touched_[static_cast<size_t>(index)].store(true, std::memory_order_relaxed);
  if (current_.exchange(index) != index) current_.notify_one();
}

void WeightStream::remove(int64_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stretches_[static_cast<size_t>(index)].data = nullptr;
}

int64_t WeightStream::wanted(int64_t first) const {
  const int64_t count = static_cast<int64_t>(stretches_.size());
  int64_t bytes = 0, n = 0;
  while (n < count && bytes < ahead_bytes_) {
    bytes += stretches_[static_cast<size_t>((first + n++) % count)].bytes;
  }
  return n;
}

void WeightStream::run() {
  for (int64_t seen = kNothing;;) {
    current_.wait(seen);
    seen = current_.load();
    if (seen == kEnd) return;
    if (give_back_) give_back_all_but(seen);
    read_ahead(seen);
  }
}

void WeightStream::read_ahead(int64_t first) {
  const int64_t count = static_cast<int64_t>(stretches_.size()), n = wanted(first);
  for (int64_t i = 0; i < n && current_.load(std::memory_order_relaxed) == first; ++i) {
    read((first + i) % count, first);
  }
}

void WeightStream::read(int64_t index, int64_t first) {
  const size_t i = static_cast<size_t>(index);
  for (int64_t at = 0;;) {
    const std::lock_guard<std::mutex> lock(mutex_);  // a piece at a time, or `remove` would wait
    const Stretch s = stretches_[i];
    if (s.data == nullptr) return;
    if (at >= s.bytes) {
      read_[i] = true;
      return;
    }
    if (at == 0 && read_[i] && (give_back_ || is_cached(s))) return;
    if (current_.load(std::memory_order_relaxed) != first) return;
    touched_[i].store(true, std::memory_order_relaxed);
    const int64_t bytes = std::min(kPiece, s.bytes - at);
    populate(page_of(s.data + at), s.data + at + bytes);
    read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    at += bytes;
  }
}

void WeightStream::give_back_all_but(int64_t first) {
  const int64_t count = static_cast<int64_t>(stretches_.size()), n = wanted(first);
  for (int64_t i = n; i < count; ++i) {
    const size_t index = static_cast<size_t>((first + i) % count);
    const std::lock_guard<std::mutex> lock(mutex_);
    const Stretch s = stretches_[index];
    if (s.data == nullptr || !touched_[index].exchange(false)) continue;
#if defined(MADV_PAGEOUT)
    advise(page_of(s.data), s.data + s.bytes, MADV_PAGEOUT);
#endif
    advise(page_of(s.data), s.data + s.bytes, MADV_DONTNEED);
    read_[index] = false;
    given_back_bytes_.fetch_add(s.bytes, std::memory_order_relaxed);
  }
}

}  // namespace quire
