// Communication of the ranks of a model in shared memory: sums, and gathered rows.
//
// A rank writes its numbers into its slot, signals it, waits for all others, and adds all slots in rank
// order, in float. So every rank gets the same bits, in every run. Two sets of slots alternate: the sum
// between two uses of a set guarantees that all ranks have read it. Baseline code.
#pragma once

#include <stdint.h>

#include <atomic>
#include <functional>

#include "kernels.h"
#include "pool.h"

namespace quire {

class RankGroup {
 public:
  static constexpr int kMaxRanks = 64;
  // Bytes of zeroed memory, aligned to 64, that all ranks map.
  static int64_t bytes(int ranks);

  // Throws std::invalid_argument unless 0 <= rank < ranks <= kMaxRanks.
  RankGroup(void* memory, int rank, int ranks);

  int ranks() const { return ranks_; }

  // Begins a step. Its number is the same on all ranks, and higher than the last one's. A rank may still
  // be in the last step, unless that has failed; then its failures are cleared.
  void begin(uint32_t step);
  // y[i] = sum over all ranks of their x[i], rounded once to dtype. All ranks must call the same sums in
  // the same order. Throws std::runtime_error if a rank has failed or is lost.
  void sum(const Kernels& kernels, Pool& pool, void* y, DType dtype, const float* x, int64_t n);
  // This rank's part of a row: its bytes [first, first + count), and their address.
  struct Part {
    int64_t first, count;
    const void* from;
  };
  // Collects y, contiguous rows, on all ranks: each byte comes from the rank that has this part of the
  // row. A part may be in y itself. Order and exceptions are those of `sum`.
  void gather(Pool& pool, void* y, int64_t rows, int64_t row_bytes,
              const std::function<Part(int64_t row)>& part);
  // Ends this rank's step; other ranks stop waiting for it.
  void fail();
  // Marks a rank as lost; all ranks stop waiting for each other.
  void lose();
  // Nanoseconds that a rank has waited for others since its start.
  uint64_t waited(int rank) const;

 private:
  struct alignas(64) Rank {
    std::atomic<uint64_t> arrived;  // step << 32 | number of sums for which it has written its slot
    std::atomic<uint64_t> failed;   // 1 + the step in which it failed
    std::atomic<uint64_t> waited;   // nanoseconds
  };
  struct Shared {
    Rank ranks[kMaxRanks];
    alignas(64) std::atomic<uint32_t> bell;  // changes with every arrival; waiters sleep on it
    std::atomic<uint32_t> sleepers;
    std::atomic<uint32_t> lost;
  };

  void sum_chunk(const Kernels& kernels, Pool& pool, void* y, DType dtype, const float* x, int64_t n);
  float* next_slots();
  // Signals that this rank's slot is written, and waits for all others.
  void meet();
  void ring();
  void wait(uint64_t arrived);
  bool all_have(uint64_t arrived) const;

  Shared* const shared_;
  const int rank_, ranks_;
  uint64_t position_ = 0;
  int set_ = 0;
  bool apart_ = false;  // the last step failed: ranks may be at different sets of slots
};

}  // namespace quire
