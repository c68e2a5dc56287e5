// GEMM of 8-bit floats (E4M3, E5M2) with bfloat16 x. Sums are float32. A row of W has one scale, or one
// per group of k, by which the group's sum is multiplied. Codes become bfloat16 or floats exactly, and
// the order of an output's additions does not depend on the number of rows.
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#include "gemm_f8_dot.h"
#else
#include "gemm_f8_floats.h"
#endif

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kChunk = 132;  // most rows of x a task: a multiple of every kMostRows

int64_t padded_k(const GemmArgs& a) { return round_up(a.k, 32); }
int64_t groups_of(const GemmArgs& a) { return a.group == 0 ? 1 : ceil_div(a.k, a.group); }

// Not a power of two: the rows of a pass share no cache set.
int64_t copied_stride(const GemmArgs& a) { return padded_k(a) + 32; }

// How a call is cut into tasks: chunks of rows, and groups of blocks of some 128 KiB.
struct F8Cut {
  int64_t pass, chunk_rows, chunks, group_blocks, groups;

  explicit F8Cut(const GemmArgs& a)
      : pass(smaller(tuned(a.tuning.pass_rows, most_rows(a)), kMostRows)) {
    const int64_t row_bytes = copied_stride(a) * static_cast<int64_t>(sizeof(X));
    const int64_t fitting = tuned(a.tuning.chunk_bytes, kChunk * row_bytes) / row_bytes;
    chunks = larger(ceil_div(a.rows, larger(smaller(fitting, kChunk) / pass, 1) * pass), 1);
    chunk_rows = ceil_div(a.rows, chunks);
    const int64_t blocks = a.n / kBlockRows;
    const int64_t fair = blocks * chunks / (a.threads * tuned(a.tuning.thread_tasks, kThreadTasks));
    const int64_t most = tuned(a.tuning.group_bytes, kGroupBytes) / (padded_k(a) * kBlockRows);
    group_blocks = larger(smaller(most, fair), 1);
    groups = ceil_div(blocks, group_blocks);
  }
};

template <class F8>
void task(const GemmArgs& a, int64_t index) {
  const F8Cut cut(a);
  const int64_t first = index / cut.groups * cut.chunk_rows;
  const int64_t rows = smaller(a.rows - first, cut.chunk_rows);
  const int64_t from = index % cut.groups * cut.group_blocks;
  const int64_t to = smaller(a.n / kBlockRows, from + cut.group_blocks);
  const int64_t k = padded_k(a), stride = in_place(a) ? a.x_stride : copied_stride(a);
  const X* const x = static_cast<const X*>(in_place(a) ? a.x : a.scratch) + first * stride;
  // More than a row reads too slowly for the processor to see a stream, even on Zen.
  const int64_t ahead = tuned(a.tuning.ahead_bytes, a.rows == 1 ? kFewRowsAhead : kStreamAhead);
  alignas(64) float sums[kChunk * kBlockRows];
  for (int64_t b = from; b < to; ++b) {
    const uint8_t* const weight = static_cast<const uint8_t*>(a.weight) + b * k * kBlockRows;
    for (int64_t i = 0; i < rows * kBlockRows; i += kLanes) store(sums + i, zero());
    if (a.group == 0) {
      add_block<F8>(sums, {x, stride, rows, cut.pass, weight, ahead, k, k, nullptr});
      finish_sums(a, first, rows, b * kBlockRows, sums);
    } else {
      const float* const scale = a.scale + b * groups_of(a) * kBlockRows;
      add_block<F8>(sums, {x, stride, rows, cut.pass, weight, ahead, k, a.group, scale});
      finish(a, first, rows, b * kBlockRows, sums);
    }
  }
}

int64_t tasks(const GemmArgs& a) {
  if (a.rows == 0) return 0;
  const F8Cut cut(a);
  return cut.chunks * cut.groups;
}

int64_t scratch_bytes(const GemmArgs& a) {
  return in_place(a) ? 0 : a.rows * copied_stride(a) * static_cast<int64_t>(sizeof(X));
}
int64_t prepare_tasks(const GemmArgs& a) {
  return in_place(a) ? 0 : ceil_div(a.rows, kPrepareRows);
}

void prepare(const GemmArgs& a, int64_t index) {
  const int64_t last = smaller(a.rows, (index + 1) * kPrepareRows), k = padded_k(a);
  for (int64_t r = index * kPrepareRows; r < last; ++r) {
    X* const row = static_cast<X*>(a.scratch) + r * copied_stride(a);
    const int64_t unused = (static_cast<int64_t>(sizeof(X)) - 2) * k;
    round_row(a, r, reinterpret_cast<uint8_t*>(row) + unused, kStepBytes);
    made_ready(row, k);
  }
}

}  // namespace

const Gemm kGemmF8E4M3 = {scratch_bytes, prepare_tasks, prepare, tasks, task<f8_e4m3>};
const Gemm kGemmF8E5M2 = {scratch_bytes, prepare_tasks, prepare, tasks, task<f8_e5m2>};

}  // namespace quire::QUIRE_ISA
