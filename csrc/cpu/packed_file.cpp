#include "packed_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <system_error>

#include "checksum.h"
#include "file_memory.h"

namespace quire {

namespace {

constexpr int64_t kWindow = FileMemory::kWindow;
constexpr int64_t kAlign = 64;  // of a weight in the file, as it is in memory

int64_t aligned(int64_t offset) { return (offset + kAlign - 1) / kAlign * kAlign; }

int64_t window_of(int64_t offset) { return offset / kWindow * kWindow; }

[[noreturn]] void fail(int error) {
  throw std::system_error(error, std::generic_category(), "packed weights");
}

// What one weight has in one window of the file.
struct Chunk {
  int64_t begin, end;
};

uint64_t checksum(const Chunk& chunk, const uint8_t* data) {
  Checksum sum(static_cast<uint64_t>(chunk.begin));
  sum.add<false>(data, chunk.end - chunk.begin, nullptr);
  return sum.value();
}

// Writes a window at a time: the system then caches it on one huge page.
class Writer {
 public:
  Writer(int fd, int64_t offset)
      : fd_(fd), begin_(offset), end_(offset), chunk_(offset), buffer_(size_t{kWindow}) {}

  void write(PackedWeight& weight) {
    static constexpr uint8_t zeros[kAlign] = {};
    chunk_ = aligned(end_);
    add(zeros, chunk_ - end_);
    for (const PackedWeight::Region& region : weight.regions()) add(region.data, region.bytes);
    count();
  }

  uint64_t finish() {
    flush();
    return sum_;
  }

 private:
  uint8_t* at(int64_t offset) { return buffer_.data() + (offset - begin_); }

  void add(const uint8_t* data, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
      const int64_t part = std::min(bytes - done, window_of(end_) + kWindow - end_);
      memcpy(at(end_), data + done, static_cast<size_t>(part));
      done += part;
      end_ += part;
      if (end_ % kWindow == 0) flush();
    }
  }

  void count() {
    if (chunk_ >= end_) return;  // between two weights
    sum_ += checksum({chunk_, end_}, at(chunk_));
    chunk_ = end_;
  }

  void flush() {
    count();
    for (int64_t done = begin_; done < end_;) {
      const ssize_t put = pwrite(fd_, at(done), static_cast<size_t>(end_ - done),
                                 static_cast<off_t>(done));
      if (put == 0) fail(EIO);
      if (put < 0 && errno != EINTR) fail(errno);
      if (put > 0) done += put;
    }
    begin_ = end_;
  }

  int fd_;
  int64_t begin_, end_, chunk_;  // of what is in the buffer, and of what is not in the sum yet
  std::vector<uint8_t> buffer_;
  uint64_t sum_ = 0;
};

struct Reading {
  FileMemory& file;
  int fd;
  int64_t first;  // window
  bool settles;
  std::vector<Chunk> chunks;
  std::atomic<uint64_t> sum{0};
  std::atomic<int> error{0};

  void read(int64_t window) {
    if (error.load(std::memory_order_relaxed) != 0) return;
    if (const int code = settles ? file.settle(fd, window) : 0; code != 0) {
      error.store(code);
      return;
    }
    const auto before = [](const Chunk& chunk, int64_t offset) { return chunk.begin < offset; };
    auto chunk = std::lower_bound(chunks.begin(), chunks.end(), window, before);
    for (; chunk != chunks.end() && chunk->begin < window + kWindow; ++chunk) {
      sum.fetch_add(checksum(*chunk, file.at(chunk->begin)));
    }
  }
};

std::vector<Chunk> chunks_of(int64_t offset, const std::vector<PackedWeight*>& weights) {
  std::vector<Chunk> chunks;
  for (PackedWeight* weight : weights) {
    const int64_t end = packed_end(offset, {weight});
    for (int64_t at = aligned(offset); at < end;) {
      const int64_t stop = std::min(end, window_of(at) + kWindow);
      chunks.push_back({at, stop});
      at = stop;
    }
    offset = end;
  }
  return chunks;
}

// As map_packed, with one mapping for all of them.
uint64_t map_together(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights,
                      bool streamed) {
  const int64_t end = packed_end(offset, weights), first = window_of(offset);
  const auto file = std::make_shared<FileMemory>(fd, offset, end - offset);
  Reading reading{*file, fd, first, !streamed, chunks_of(offset, weights)};
  const auto body = [](void* context, int64_t task) {
    Reading& all = *static_cast<Reading*>(context);
    all.read(all.first + task * kWindow);
  };
  pool.run((end - first + kWindow - 1) / kWindow, body, &reading);
  if (reading.error.load() != 0) fail(reading.error.load());
  for (PackedWeight* weight : weights) {
    uint8_t* from = file->at(aligned(offset));
    offset = packed_end(offset, {weight});
    weight->memory().map(file, from, streamed);
    bool blocks = true;
    for (const PackedWeight::Region& region : weight->regions()) {
      if (!blocks && region.bytes > 0) memcpy(region.data, from, static_cast<size_t>(region.bytes));
      from += region.bytes;
      blocks = false;
    }
    if (streamed) weight->memory().drop();
  }
  return reading.sum.load();
}

}  // namespace

uint64_t write_packed(int fd, int64_t offset, const std::vector<PackedWeight*>& weights) {
  Writer writer(fd, offset);
  for (PackedWeight* weight : weights) writer.write(*weight);
  return writer.finish();
}

uint64_t map_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights,
                    bool streamed) {
  struct stat file;
  if (fstat(fd, &file) != 0) fail(errno);
  if (packed_end(offset, weights) > file.st_size) fail(EIO);  // touching it would end the process
  if (!streamed) return map_together(pool, fd, offset, weights, false);
  uint64_t sum = 0;
  for (PackedWeight* weight : weights) {  // their pages come and go one weight at a time
    sum += map_together(pool, fd, offset, {weight}, true);
    offset = packed_end(offset, {weight});
  }
  return sum;
}

int64_t packed_end(int64_t offset, const std::vector<PackedWeight*>& weights) {
  for (PackedWeight* weight : weights) {
    offset = aligned(offset);
    for (const PackedWeight::Region& region : weight->regions()) offset += region.bytes;
  }
  return offset;
}

}  // namespace quire
