// The common parts of an ISA's kernels for grouped weights: layout, tasks, the end of a group.
#pragma once

#include "codes.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t kGroupedChunk = 96;  // rows of x per task
constexpr int64_t kGroupedTileRows = 16;
constexpr int64_t kCodeStep = 16;  // columns

inline int64_t groups_of(const GemmArgs& a) { return ceil_div(a.k, a.group); }
// Scales, and offsets or zero points.
inline int64_t head_bytes(const GemmArgs& a) { return a.second == kNoSecond ? 64 : 128; }
template <class C>
inline int64_t group_bytes(const GemmArgs& a) {
  return head_bytes(a) + a.group / kCodeStep * C::kLines * 64;
}
template <class C>
inline int64_t block_bytes(const GemmArgs& a) {
  return groups_of(a) * group_bytes<C>(a);
}

// x in the scratch memory: int8 rows, padded with zeros to whole groups; one scale per row; per group
// of a row the initial value of its sum, -zero * the sum of x; and, if groups have zero points or
// offsets, the sum of x. An additional line keeps the rows of a tile in different cache sets. Rows are
// padded to whole tiles for AMX. More rows, one per prepare task, hold x before it is permuted.
struct GroupedX {
  int64_t groups, stride, bytes;
  int8_t *q = nullptr, *unordered = nullptr;
  float *scale = nullptr, *sum = nullptr;
  int32_t* start = nullptr;

  explicit GroupedX(const GemmArgs& a)
      : groups(groups_of(a)), stride(round_up(a.k, larger(a.group, kStepBytes)) + 64) {
    const int64_t staged = a.permutation == nullptr ? 0 : ceil_div(a.rows, kPrepareRows);
    const int64_t padded = round_up(a.rows, kGroupedTileRows);
    bytes = (padded + staged) * stride + (1 + 2 * groups) * a.rows * 4;
    if (a.scratch == nullptr) return;  // only the size is needed
    q = static_cast<int8_t*>(a.scratch);
    unordered = q + padded * stride;
    scale = reinterpret_cast<float*>(unordered + staged * stride);
    start = reinterpret_cast<int32_t*>(scale + a.rows);
    sum = reinterpret_cast<float*>(start + a.rows * groups);
  }
};

// Tasks of a call: chunks of rows, and groups of blocks of about 64 KiB.
template <class C>
struct GroupedCut {
  int64_t chunks, task_blocks, parts;

  explicit GroupedCut(const GemmArgs& a) : chunks(ceil_div(a.rows, kGroupedChunk)) {
    const int64_t blocks = ceil_div(a.n, kBlockRows);
    const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, 8));
    const int64_t most = tuned(a.tuning.group_bytes, 64 << 10) / block_bytes<C>(a);
    task_blocks = larger(smaller(fair, most), 1);
    parts = ceil_div(blocks, task_blocks);
  }
};

// A task's rows of x, first … last - 1, and packed rows of W, from … to - 1.
template <class C>
struct GroupedTask {
  int64_t first, last, from, to;
  const uint8_t* weight;

  GroupedTask(const GemmArgs& a, int64_t index) {
    const GroupedCut<C> cut(a);
    first = index % cut.chunks * kGroupedChunk;
    last = smaller(a.rows, first + kGroupedChunk);
    const int64_t block = index / cut.chunks * cut.task_blocks;
    from = block * kBlockRows;
    to = smaller(a.n, from + cut.task_blocks * kBlockRows);
    weight = static_cast<const uint8_t*>(a.weight) + block * block_bytes<C>(a);
  }
};

// The end of a group for columns j … j + kLanes - 1 of a block: adds it to a sum.
struct GroupEnd {
  Vec scale, offset;

  GroupEnd(const GemmArgs& a, const uint8_t* head, int64_t j) {
    const f16* at = reinterpret_cast<const f16*>(head) + j;
    scale = load(at);
    if (a.second == kNoSecond) return;
    const Vec second = load(at + kBlockRows);
    offset = a.second == kZeroPoints ? mul(scale, second) : second;
  }
  Vec add_products(Vec sum, Vec products) const { return fma(scale, products, sum); }
  Vec add_offset(Vec sum, float x_sum) const { return fma(offset, broadcast(x_sum), sum); }
};

// The epilogue of `rows` rows from r on and the packed rows n0 … n0+31.
inline void grouped_finish(const GemmArgs& a, const GroupedX& x, int64_t r, int64_t rows,
                           int64_t n0, float* sums) {
  finish_scaled(a, r, rows, n0, sums, x.scale + r);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
