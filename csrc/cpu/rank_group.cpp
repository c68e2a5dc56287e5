#include "rank_group.h"

#include <string.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "sleep.h"

namespace quire {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kSleep = std::chrono::milliseconds(100);  // should a bell not be heard
// A task's numbers, and how many tasks a chunk has: a chunk of every rank fits into the second-level
// cache, and a decoding step is one task.
constexpr int64_t kPiece = 8192, kPieces = 16;
constexpr int64_t kChunk = kPiece * kPieces, kPieceBytes = kPiece * 4;

}  // namespace

int64_t RankGroup::bytes(int ranks) {
  return static_cast<int64_t>(sizeof(Shared)) + 2 * ranks * kChunk * 4;
}

RankGroup::RankGroup(void* memory, int rank, int ranks)
    : shared_(static_cast<Shared*>(memory)), rank_(rank), ranks_(ranks) {
  if (rank < 0 || rank >= ranks || ranks > kMaxRanks) {
    throw std::invalid_argument("no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
}

float* RankGroup::next_slots() {
  float* const slots = reinterpret_cast<float*>(shared_ + 1) + set_ * ranks_ * kChunk;
  set_ = 1 - set_;
  return slots;
}

void RankGroup::begin(uint32_t step) {
  position_ = uint64_t{step} << 32;
  if (apart_) set_ = 0;
  apart_ = false;
}

void RankGroup::sum(const Kernels& kernels, Pool& pool, void* y, DType dtype, const float* x,
                    int64_t n) {
  const int64_t item = dtype == kFloat32 ? 4 : 2;
  for (int64_t done = 0; done < n; done += kChunk) {
    sum_chunk(kernels, pool, static_cast<uint8_t*>(y) + done * item, dtype, x + done,
              std::min(kChunk, n - done));
  }
}

// In the slots, the ranks' parts of a piece follow each other: a sum of rows, to the kernel.
void RankGroup::sum_chunk(const Kernels& kernels, Pool& pool, void* y, DType dtype, const float* x,
                          int64_t n) {
  const int64_t item = dtype == kFloat32 ? 4 : 2;
  const int64_t tasks = (n + kPiece - 1) / kPiece;
  float* const all = next_slots();
  run_tasks(pool, tasks, [&](int64_t task) {
    const int64_t begin = task * kPiece, count = std::min(kPiece, n - begin);
    memcpy(all + begin * ranks_ + rank_ * count, x + begin, static_cast<size_t>(count) * 4);
  });
  meet();
  int64_t place[kMaxRanks];
  float ones[kMaxRanks];
  for (int r = 0; r < ranks_; ++r) place[r] = r, ones[r] = 1.0f;
  run_tasks(pool, tasks, [&](int64_t task) {
    const int64_t begin = task * kPiece, count = std::min(kPiece, n - begin);
    kernels.mix[dtype]({static_cast<uint8_t*>(y) + begin * item, all + begin * ranks_, place, ones,
                        ranks_, count},
                       0);
  });
}

// All slots are one piece of y, into which each rank writes what it has of it.
void RankGroup::gather(Pool& pool, void* y, int64_t rows, int64_t row_bytes,
                       const std::function<Part(int64_t row)>& part) {
  const int64_t all_bytes = rows * row_bytes, chunk_bytes = ranks_ * kChunk * 4;
  for (int64_t chunk = 0; chunk < all_bytes; chunk += chunk_bytes) {
    const int64_t chunk_end = std::min(all_bytes, chunk + chunk_bytes);
    const int64_t tasks = (chunk_end - chunk + kPieceBytes - 1) / kPieceBytes;
    uint8_t* const slots = reinterpret_cast<uint8_t*>(next_slots());
    run_tasks(pool, tasks, [&](int64_t task) {
      const int64_t begin = chunk + task * kPieceBytes;
      const int64_t end = std::min(chunk_end, begin + kPieceBytes);
      for (int64_t row = begin / row_bytes; row * row_bytes < end; ++row) {
        const Part own = part(row);
        const int64_t at = row * row_bytes + own.first;
        const int64_t from = std::max(begin, at), to = std::min(end, at + own.count);
        if (from >= to) continue;
        memcpy(slots + (from - chunk), static_cast<const uint8_t*>(own.from) + (from - at),
               static_cast<size_t>(to - from));
      }
    });
    meet();
    run_tasks(pool, tasks, [&](int64_t task) {
      const int64_t begin = chunk + task * kPieceBytes;
      const int64_t end = std::min(chunk_end, begin + kPieceBytes);
      memcpy(static_cast<uint8_t*>(y) + begin, slots + (begin - chunk),
             static_cast<size_t>(end - begin));
    });
  }
}

void RankGroup::meet() {
  ++position_;
  shared_->ranks[rank_].arrived.store(position_);
  ring();
  apart_ = true;
  wait(position_);
  apart_ = false;
}

void RankGroup::fail() {
  apart_ = true;
  shared_->ranks[rank_].failed.store((position_ >> 32) + 1);
  ring();
}

void RankGroup::lose() {
  shared_->lost.store(1);
  ring();
}

// Sequentially consistent, as all that is shared: either the sleeper sees what has changed, or it is
// seen to sleep.
void RankGroup::ring() {
  shared_->bell.fetch_add(1);
  if (shared_->sleepers.load() != 0) {
    wake_shared(shared_->bell);
  }
}

bool RankGroup::all_have(uint64_t arrived) const {
  bool all = true;
  for (int r = 0; r < ranks_; ++r) {
    const Rank& rank = shared_->ranks[r];
    const uint64_t failed = rank.failed.load();  // read first: it may have arrived, and then failed
    if (rank.arrived.load() >= arrived) continue;
    all = false;
    if (failed == (arrived >> 32) + 1) {
      throw std::runtime_error("rank " + std::to_string(r) + " has failed in this step");
    }
  }
  if (!all && shared_->lost.load() != 0) throw std::runtime_error("a rank is lost");
  return all;
}

uint64_t RankGroup::waited(int rank) const {
  return shared_->ranks[rank].waited.load(std::memory_order_relaxed);
}

void RankGroup::wait(uint64_t arrived) {
  if (all_have(arrived)) return;
  const auto begin = Clock::now(), end = begin + kSpin;
  struct Timer {
    std::atomic<uint64_t>& total;
    Clock::time_point begin;
    ~Timer() {
      const auto waited = std::chrono::nanoseconds(Clock::now() - begin).count();
      total.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
    }
  } timer{shared_->ranks[rank_].waited, begin};
  do {
    for (int i = 0; i < 16; ++i) {
      if (all_have(arrived)) return;
      pause();
    }
  } while (Clock::now() < end);
  struct Sleeper {
    std::atomic<uint32_t>& count;
    explicit Sleeper(std::atomic<uint32_t>& c) : count(c) { count.fetch_add(1); }
    ~Sleeper() { count.fetch_sub(1); }
  } sleeper(shared_->sleepers);
  for (;;) {
    const uint32_t seen = shared_->bell.load();
    if (all_have(arrived)) return;
    sleep_while_shared(shared_->bell, seen, kSleep);
  }
}

}  // namespace quire
