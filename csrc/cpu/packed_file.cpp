#include "packed_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <system_error>
#include <utility>

#include "checksum.h"

namespace quire {

namespace {

constexpr int64_t kChunk = 2 << 20;  // a huge page: one thread touches it first
constexpr int64_t kAlign = 64;       // of a weight in the file, as it is in memory

typedef int (*Move)(int fd, const struct Chunk&);

struct Chunk {
  uint8_t* data;
  int64_t bytes, offset;  // in the file
  Move move;              // null: it is there
};

int64_t aligned(int64_t offset) { return (offset + kAlign - 1) / kAlign * kAlign; }

uint64_t checksum(const Chunk& chunk) {
  Checksum sum(static_cast<uint64_t>(chunk.offset));
  sum.add<false>(chunk.data, chunk.bytes, nullptr);
  return sum.value();
}

int read_chunk(int fd, const Chunk& chunk) {
  for (int64_t done = 0; done < chunk.bytes;) {
    const ssize_t got = pread(fd, chunk.data + done, static_cast<size_t>(chunk.bytes - done),
                              chunk.offset + done);
    if (got == 0) return EIO;
    if (got < 0 && errno != EINTR) return errno;
    if (got > 0) done += got;
  }
  return 0;
}

int write_chunk(int fd, const Chunk& chunk) {
  for (int64_t done = 0; done < chunk.bytes;) {
    const ssize_t put = pwrite(fd, chunk.data + done, static_cast<size_t>(chunk.bytes - done),
                               chunk.offset + done);
    if (put == 0) return EIO;
    if (put < 0 && errno != EINTR) return errno;
    if (put > 0) done += put;
  }
  return 0;
}

struct Transfer {
  std::vector<Chunk> chunks;
  int fd;
  std::atomic<uint64_t> sum{0};
  std::atomic<int> error{0};
};

// The weights' regions in pieces; blocks are moved by `blocks`, all else by `move`.
std::vector<Chunk> chunks_of(int64_t offset, const std::vector<PackedWeight*>& weights, Move blocks,
                             Move move) {
  std::vector<Chunk> chunks;
  for (PackedWeight* weight : weights) {
    offset = aligned(offset);
    Move how = blocks;
    for (const PackedWeight::Region& region : weight->regions()) {
      for (int64_t at = 0; at < region.bytes; at += kChunk) {
        const int64_t bytes = region.bytes - at < kChunk ? region.bytes - at : kChunk;
        chunks.push_back({region.data + at, bytes, offset + at, how});
      }
      offset += region.bytes;
      how = move;
    }
  }
  return chunks;
}

uint64_t transfer(Pool& pool, int fd, std::vector<Chunk> chunks) {
  Transfer t;
  t.fd = fd;
  t.chunks = std::move(chunks);
  const auto body = [](void* context, int64_t task) {
    Transfer& job = *static_cast<Transfer*>(context);
    if (job.error.load(std::memory_order_relaxed) != 0) return;
    const Chunk& chunk = job.chunks[static_cast<size_t>(task)];
    const int error = chunk.move == nullptr ? 0 : chunk.move(job.fd, chunk);
    if (error != 0) job.error.store(error);
    job.sum.fetch_add(checksum(chunk));
  };
  pool.run(static_cast<int64_t>(t.chunks.size()), body, &t);
  if (t.error.load() != 0) {
    throw std::system_error(t.error.load(), std::generic_category(), "packed weights");
  }
  return t.sum.load();
}

}  // namespace

uint64_t read_packed(Pool& pool, int fd, int64_t offset,
                     const std::vector<PackedWeight*>& weights) {
  return transfer(pool, fd, chunks_of(offset, weights, read_chunk, read_chunk));
}

uint64_t write_packed(Pool& pool, int fd, int64_t offset,
                      const std::vector<PackedWeight*>& weights) {
  return transfer(pool, fd, chunks_of(offset, weights, write_chunk, write_chunk));
}

uint64_t map_packed(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights) {
  struct stat file;
  if (fstat(fd, &file) != 0) throw std::system_error(errno, std::generic_category());
  if (packed_end(offset, weights) > file.st_size) {  // touching what is not there ends the process
    throw std::system_error(EIO, std::generic_category(), "packed weights");
  }
  int64_t at = offset;
  for (PackedWeight* weight : weights) {
    weight->memory().map(fd, aligned(at));
    at = packed_end(at, {weight});
  }
  const uint64_t sum = transfer(pool, fd, chunks_of(offset, weights, nullptr, read_chunk));
  for (PackedWeight* weight : weights) weight->memory().drop();
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
