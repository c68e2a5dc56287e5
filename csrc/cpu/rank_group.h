// What the processes that compute a model together tell each other, in memory that they share: sums,
// and rows of which each has a part.
//
// A rank puts its numbers into a slot of its own, says so, waits until all others have, and adds up
// all slots in the order of the ranks, in float: every rank gets the same bits, in every run. There
// are two sets of slots, used in turns: whoever writes one again knows, from the sum between, that
// everybody has read it. Baseline code.
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
  // Of zeroed memory, aligned to 64, which all ranks map.
  static int64_t bytes(int ranks);

  // Throws std::invalid_argument unless 0 <= rank < ranks <= kMaxRanks.
  RankGroup(void* memory, int rank, int ranks);

  int ranks() const { return ranks_; }

  // A new step: its number is the same on all ranks, and higher than the last one's. No rank is still
  // in the last one. Whoever failed there is no more taken to have.
  void begin(uint32_t step);
  // y[i] = the sum over all ranks of their x[i], rounded once to dtype. All ranks ask for the same
  // sums in the same order. Throws std::runtime_error where a rank has failed or is lost.
  void sum(const Kernels& kernels, Pool& pool, void* y, DType dtype, const float* x, int64_t n);
  // What of a row is this rank's: its bytes [first, first + count), and where they lie.
  struct Part {
    int64_t first, count;
    const void* from;
  };
  // y, contiguous rows, on all ranks: every byte from the rank whose part of its row it is. A part may
  // lie in y itself. As for `sum`, whose exceptions it throws.
  void gather(Pool& pool, void* y, int64_t rows, int64_t row_bytes,
              const std::function<Part(int64_t row)>& part);
  // This rank ends its step here; nobody waits for it.
  void fail();
  // A rank is gone for good; nobody waits for anyone any more.
  void lose();
  // Nanoseconds that a rank has waited for others since it began.
  uint64_t waited(int rank) const;

 private:
  struct alignas(64) Rank {
    std::atomic<uint64_t> arrived;  // step << 32 | sums that it has put its numbers in for
    std::atomic<uint64_t> failed;   // 1 + the step that it failed in
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
  // Says that this rank's numbers are in the slots, and waits for all others'.
  void meet();
  void ring();
  void wait(uint64_t arrived);
  bool all_have(uint64_t arrived) const;

  Shared* const shared_;
  const int rank_, ranks_;
  uint64_t position_ = 0;
  int set_ = 0;
};

}  // namespace quire
