// The loop of the kernels without tiles over rows and blocks, for every kind of weight.
//
// A kernel K multiplies R rows of x by one block of W, for every R from 1 to K::kMost:
//   X, Sum             types of x and of sums
//   input(a)           address and layout of x
//   block<R>(sums, p)  sums[R][32]; their order of summation does not depend on R
//   kStreamRows        max rows with which W is read at memory speed
// Rows are divided evenly: 12 rows are two passes of 6, not one of 10 and one of 2.
#pragma once

#include "gemm_parts.h"

#define QUIRE_UNROLL _Pragma("GCC unroll 16")

namespace quire::QUIRE_ISA {
namespace {

// Most rows of a pass with sums of floats, half a block of each in registers.
// GCC spills six with AVX2, and five with NEON.
constexpr int kFloatRows = kLanes == 16 ? 12 : kLanes == 8 ? 5 : kNeon ? 4 : 2;

template <class T>
struct Input {
  const T* x;
  int64_t stride;  // elements from row to row
  int64_t k;       // padded like the weight
  int64_t block_bytes;
};

// R rows of x by the address of every third row, hidden from the compiler, which would otherwise keep
// all addresses in registers and run out of them.
template <int R, class T>
struct Thirds {
  const T* row[(R + 2) / 3];
  int64_t stride;

  Thirds(const T* x, int64_t row_stride) : stride(row_stride) {
    QUIRE_UNROLL for (const T*& third : row) {
      third = x;
      __asm__("" : "+r"(third));
      x += 3 * stride;
    }
  }
  const T* at(int r) const { return row[r / 3] + r % 3 * stride; }
  void skip(int64_t columns) {
    QUIRE_UNROLL for (const T*& third : row) third += columns;
  }
};

// A pass is not inlined: next to others it would not get enough registers.
#define QUIRE_PASS __attribute__((noinline))

// Some rows of x against one block.
template <class T>
struct Pass {
  const T* x;
  int64_t stride, k;
  const uint8_t* weight;
  int64_t ahead;           // prefetch distance in bytes
  const uint8_t* next;     // for add_wide: where its prefetching begins
  int64_t passes;          // passes over the block; each prefetches its part of the next one
  const int32_t* row_sum;  // s8: sums of the block's rows
};

// Prefetches the line at distance `ahead` into the L2 cache. A block is read in memory order. Read as two
// streams, one per tile, it came from memory at a third of the speed.
inline void fetch(const uint8_t* line, int64_t ahead) { __builtin_prefetch(line + ahead, 0, 2); }

template <class K, int R = K::kMost>
inline void multiply(int64_t rows, typename K::Sum* sums, const Pass<typename K::X>& pass) {
  if constexpr (R > 1) {
    if (rows < R) return multiply<K, R - 1>(rows, sums, pass);
  }
  K::template block<R>(sums, pass);
}

// A task is a chunk of rows, which stays in the L2 cache, against a group of blocks.
struct RowCut {
  int64_t chunk_rows, chunks, group_blocks, groups;
};

constexpr int64_t kChunkBytes = 256 << 10;  // bytes of x
constexpr int64_t kGroupBytes = 128 << 10;  // bytes of W; starting a new stream is cheap in comparison

constexpr int64_t kThreadTasks = 8;

// Prefetch distance of W if it is read once; 0 leaves it to the processor.
template <class K>
int64_t stream_ahead(const GemmArgs& a, int64_t rows) {
  return tuned(a.tuning.ahead_bytes, rows <= K::kStreamRows ? kFewRowsAhead : kStreamAhead);
}

// Maximum rows of a pass.
template <class K>
int64_t pass_rows(const GemmArgs& a) {
  return smaller(tuned(a.tuning.pass_rows, K::kMost), K::kMost);
}

template <class K>
RowCut row_cut(const GemmArgs& a) {
  const Input<typename K::X> in = K::input(a);
  const int64_t row_bytes = in.stride * static_cast<int64_t>(sizeof(typename K::X));
  const int64_t most = pass_rows<K>(a);
  const int64_t fitting = larger(tuned(a.tuning.chunk_bytes, kChunkBytes) / row_bytes / most, 1) * most;
  const int64_t chunks = larger(ceil_div(a.rows, fitting), 1);
  const int64_t chunk_rows = ceil_div(a.rows, chunks);
  const int64_t blocks = a.n / kBlockRows;
  const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, kThreadTasks));
  const int64_t wanted = tuned(a.tuning.group_bytes, kGroupBytes) / in.block_bytes;
  const int64_t group = larger(smaller(wanted, fair), 1);
  return {chunk_rows, chunks, group, ceil_div(blocks, group)};
}

template <class K>
int64_t row_tasks(const GemmArgs& a) {
  if (a.rows == 0) return 0;
  const RowCut c = row_cut<K>(a);
  return c.chunks * c.groups;
}

template <class K>
void row_task(const GemmArgs& a, int64_t index) {
  const RowCut c = row_cut<K>(a);
  const Input<typename K::X> in = K::input(a);
  const int64_t first = index / c.groups * c.chunk_rows;
  const int64_t last = smaller(a.rows, first + c.chunk_rows);
  const int64_t block = index % c.groups * c.group_blocks;
  const int64_t end = smaller(a.n / kBlockRows, block + c.group_blocks);
  alignas(64) typename K::Sum sums[K::kMost * kBlockRows];
  const int64_t passes = ceil_div(last - first, pass_rows<K>(a));
  for (int64_t b = block; b < end; ++b) {
    const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + b * in.block_bytes;
    const int64_t n0 = b * kBlockRows;
    const int32_t* row_sum = a.row_sum == nullptr ? nullptr : a.row_sum + n0;
    // A block that is read once is a stream; else all passes or the first prefetch the next block.
    int64_t ahead = passes == 1 ? stream_ahead<K>(a, last - first) : in.block_bytes;
    const uint8_t* next = weight + ahead;
    for (int64_t r = first, left = passes; left > 0; --left) {
      const int64_t rows = ceil_div(last - r, left);
      multiply<K>(rows, sums, {in.x + r * in.stride, in.stride, in.k, weight, ahead, next, passes,
                               row_sum});
      finish_sums(a, r, rows, n0, sums);
      r += rows;
      ahead = 0;
      next += in.block_bytes / passes;
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
