#include "packed_file.h"

#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <system_error>

#include "checksum.h"

namespace quire {

namespace {

constexpr int64_t kChunk = 2 << 20;  // a huge page: one thread touches it first

struct Chunk {
  uint8_t* data;
  int64_t bytes, offset;  // in the file
};

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
  int (*move)(int, const Chunk&);
  int fd;
  std::atomic<uint64_t> sum{0};
  std::atomic<int> error{0};
};

uint64_t transfer(Pool& pool, int fd, int64_t offset, const std::vector<PackedWeight*>& weights,
                  int (*move)(int, const Chunk&)) {
  Transfer t;
  t.move = move;
  t.fd = fd;
  for (PackedWeight* weight : weights) {
    for (const PackedWeight::Region& region : weight->regions()) {
      for (int64_t at = 0; at < region.bytes; at += kChunk) {
        const int64_t bytes = region.bytes - at < kChunk ? region.bytes - at : kChunk;
        t.chunks.push_back({region.data + at, bytes, offset + at});
      }
      offset += region.bytes;
    }
  }
  const auto body = [](void* context, int64_t task) {
    Transfer& job = *static_cast<Transfer*>(context);
    if (job.error.load(std::memory_order_relaxed) != 0) return;
    const Chunk& chunk = job.chunks[static_cast<size_t>(task)];
    const int error = job.move(job.fd, chunk);
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
  return transfer(pool, fd, offset, weights, read_chunk);
}

uint64_t write_packed(Pool& pool, int fd, int64_t offset,
                      const std::vector<PackedWeight*>& weights) {
  return transfer(pool, fd, offset, weights, write_chunk);
}

}  // namespace quire
