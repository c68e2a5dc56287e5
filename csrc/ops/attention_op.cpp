// Paged attention.
#include <algorithm>
#include <atomic>
#include <tuple>

#include <nanobind/stl/tuple.h>

#include "../bind.h"
#include "../cpu/attention_any.h"
#include "../cpu/attention_plan.h"
#include "../cpu/op.h"
#include "../submit.h"
#include "kv_cache.h"
#include "sequences.h"

namespace nb = nanobind;

namespace quire {

namespace {

// `run` fills what of the arguments follows from the batch.
struct PagedAttention final : Op {
  PagedAttention(const Kernels& kernels, const Matrix& out, const Matrix& q, const KvCache& cache,
                 const Sequences& batch, int64_t window, bool causal, double scale, float softcap,
                 AttentionSplit split, const AttentionTuning& tuning, const float* sinks, bool chunked)
      : kernel_(kernels.attention.paged_attention[cache.dtype]), rows_(q.rows),
        token_bytes_(cache.token_bytes()), split_(split),
        args_{out.at, q.at, cache.k, cache.v, cache.k_scale, cache.v_scale, cache.k_signs,
              batch.query_start_loc,
              batch.seq_lens, batch.block_tables, batch.num, batch.block_table_stride,
              q.cols / cache.head_dim, cache.kv_heads, cache.head_dim, cache.block_size, out.stride,
              q.stride, cache.k_block_stride, cache.v_block_stride, window, chunked, causal,
              static_cast<float>(scale * cache.k_unit), softcap,
              static_cast<float>(cache.v_unit), q.dtype, tuning, nullptr, nullptr,
              nullptr, sinks, cache.dtype == kInt4, batch.whole} {
    expect_same("out", out, "q", q);
    if (cache.kv_heads < 1 || args_.heads < 1 || args_.heads % cache.kv_heads != 0) {
      throw std::invalid_argument("the heads are no multiple of the kv heads");
    }
    if (chunked && (window < 1 || !causal)) {
      throw std::invalid_argument("chunks need a size, and a causal model");
    }
    if (chunked && batch.whole != nullptr) {
      throw std::invalid_argument("with chunks, no sequence is seen whole");
    }
    args_.tile_rows = kernels.attention.tile_rows(args_, cache.dtype);
  }
  const char* name() const override { return "paged_attention"; }
  int64_t& rows() override { return rows_; }
  std::vector<Operand> operands() override {
    std::vector<Operand> all = operands_at(args_.out, args_.q, args_.query_start_loc,
                                           args_.seq_lens, args_.block_tables);
    if (args_.whole != nullptr) all.push_back({&args_.whole});
    return all;
  }
  void set_inputs(const std::vector<StepInput>& inputs) override {
    set_sequences(args_, inputs);
  }

  void run(Pool& pool) override {
    const int64_t threads = pool.threads(), plan = attention_plan_bytes(args_, rows_, pool.threads());
    const int64_t floats = attention_fits(args_) ? 0 : attention_any_floats(args_);
    const int64_t bytes = plan + threads * floats * static_cast<int64_t>(sizeof(float));
    uint8_t* const memory = static_cast<uint8_t*>(pool.scratch(bytes));
    const AttentionSplit split = floats > 0 ? AttentionSplit::kNever : split_;
    const int64_t tasks = plan_attention(args_, rows_, memory, pool.threads(), split);
    if (floats > 0) return run_any(pool, tasks, reinterpret_cast<float*>(memory + plan), floats);
    run_tasks(pool, tasks, [&](int64_t task) { kernel_(args_, task); });
  }

  int64_t bytes() const override {
    const AttentionArgs& a = args_;
    int64_t tokens = 0;
    for (int64_t s = 0; s < a.num_seqs; ++s) {
      const int64_t rows = a.query_start_loc[s + 1] - a.query_start_loc[s];
      const int64_t seen = a.chunked      ? a.seq_lens[s] - attention_first(a, a.seq_lens[s] - rows)
                           : a.window > 0 ? a.window + rows
                                          : a.seq_lens[s];
      tokens += std::min<int64_t>(a.seq_lens[s], seen);
    }
    return tokens * token_bytes_ +
           2 * rows_ * a.heads * a.head_dim * item_bytes(static_cast<DType>(a.q_dtype));
  }

  int64_t flops() const override {
    const AttentionArgs& a = args_;
    // What the first n rows of a sequence see of their chunks.
    const auto in_chunks = [&](int64_t n) {
      const int64_t rest = n % a.window;
      return n / a.window * a.window * (a.window + 1) / 2 + rest * (rest + 1) / 2;
    };
    int64_t pairs = 0;  // of a query row and a key that it sees
    for (int64_t s = 0; s < a.num_seqs; ++s) {
      const int64_t rows = a.query_start_loc[s + 1] - a.query_start_loc[s];
      const int64_t last = a.seq_lens[s], first = last - rows + 1;  // seen by its last and first row
      if (a.chunked) {
        pairs += in_chunks(last) - in_chunks(last - rows);
        continue;
      }
      const int64_t window = a.window > 0 ? a.window : last;
      const int64_t full = std::max<int64_t>(0, std::min(rows, window - first + 1));
      const int64_t behind = full * first + full * (full - 1) / 2 + (rows - full) * window;
      const bool whole = a.whole != nullptr && a.whole[s] != 0;
      // Ahead it is the mirror image; a whole sequence's rows see each other.
      pairs += whole ? behind + rows * (rows - 1) / 2 : a.causal ? behind : 2 * behind - rows;
    }
    return 4 * pairs * a.heads * a.head_dim;
  }

 private:
  // Each of as many jobs as threads takes the next task, and has `floats` of the memory.
  void run_any(Pool& pool, int64_t tasks, float* memory, int64_t floats) {
    std::atomic<int64_t> next{0};
    run_tasks(pool, std::min<int64_t>(tasks, pool.threads()), [&](int64_t job) {
      AttentionArgs a = args_;
      a.partials = memory + job * floats;
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        kernel_(a, task);
      }
    });
  }

  void (*kernel_)(const AttentionArgs&, int64_t task);
  int64_t rows_, token_bytes_;
  AttentionSplit split_;
  AttentionArgs args_;
};

// `tuning` has the fields of AttentionTuning; `sinks` is the address of a float per head, or 0.
// If `chunked`, `window` is the size of chunks.
void paged_attention(const Kernels& kernels, Pool& pool, const Matrix& out, const Matrix& q,
                     const KvCache& cache, const Sequences& batch, int64_t window, bool causal,
                     double scale, float softcap, int split,
                     std::tuple<int64_t, int64_t, int64_t> tuning, uintptr_t sinks,
                     bool chunked) {
  if (split < 0 || split > static_cast<int>(AttentionSplit::kAlways)) {
    throw std::invalid_argument("unknown split");
  }
  const auto [thread_tasks, tall_rows, ahead_bytes] = tuning;
  if (thread_tasks < 0 || thread_tasks > kMostThreadTasks || tall_rows < 0 || ahead_bytes < 0) {
    throw std::invalid_argument("no such tuning of attention");
  }
  submit(pool, PagedAttention(kernels, out, q, cache, batch, window, causal, scale, softcap,
                              static_cast<AttentionSplit>(split),
                              {thread_tasks, tall_rows, ahead_bytes}, pointer<float>(sinks), chunked));
}

void exp2_floats(const Kernels& kernels, uintptr_t y, uintptr_t x, int64_t count) {
  const nb::gil_scoped_release unlocked;
  kernels.attention.exp2(pointer<float>(y), pointer<float>(x), count);
}

}  // namespace

void bind_attention_op(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Sequences>(m, "Sequences")
      .def("__init__", [](Sequences* self, uintptr_t query_start_loc, uintptr_t seq_lens,
                          uintptr_t block_tables, int64_t num, int64_t block_table_stride,
                          uintptr_t whole) {
        new (self) Sequences{pointer<int32_t>(query_start_loc), pointer<int32_t>(seq_lens),
                             pointer<int32_t>(block_tables), num, block_table_stride,
                             pointer<int32_t>(whole)};
      }, "query_start_loc"_a, "seq_lens"_a, "block_tables"_a, "num"_a, "block_table_stride"_a,
           "whole"_a = 0);
  m.def("paged_attention", &paged_attention, "kernels"_a, "pool"_a, "out"_a, "q"_a, "cache"_a,
        "batch"_a, "window"_a, "causal"_a, "scale"_a, "softcap"_a, "split"_a, "tuning"_a,
        "sinks"_a = 0, "chunked"_a = false);
  m.def("exp2", &exp2_floats);
}

}  // namespace quire
