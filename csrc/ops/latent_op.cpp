// Attention over latents.
#include <algorithm>
#include <atomic>
#include <string>

#include "../bind.h"
#include "../cpu/attention_latent.h"
#include "../cpu/attention_plan.h"
#include "../cpu/op.h"
#include "../submit.h"
#include "kv_cache.h"
#include "sequences.h"

namespace nb = nanobind;

namespace quire {

namespace {

// `run` fills what of the arguments follows from the batch.
struct LatentAttention final : Op {
  // `q` [tokens, heads * latent], `q_rope` [tokens, heads * width] with the rotated elements first.
  LatentAttention(const Kernels& kernels, const Matrix& out, const Matrix& q, const Matrix& q_rope,
                  const KvCache& cache, const Sequences& batch, int64_t heads, double scale,
                  int split)
      : kernel_(kernels.attention.latent_attention[cache.dtype]), rows_(q.rows),
        token_bytes_(cache.token_bytes()), split_(static_cast<AttentionSplit>(split)) {
    expect_same("out", out, "q", q);
    if (kernel_ == nullptr) throw std::invalid_argument("latents cannot be int4");
    expect(q_rope.rows == q.rows && q_rope.dtype == q.dtype, "q_rope", q_rope, "q", q);
    if (split < 0 || split > static_cast<int>(AttentionSplit::kAlways)) {
      throw std::invalid_argument("unknown split");
    }
    const int64_t rank = heads > 0 ? q.cols / heads : 0, rope = cache.head_dim - rank;
    if (rank < 1 || q.cols != heads * rank || q_rope.cols % heads != 0 || rope < 0 ||
        q_rope.cols / heads < rope || cache.kv_heads != 1) {
      throw std::invalid_argument("q is " + describe(q) + " and q_rope is " + describe(q_rope) +
                                  ", with " + std::to_string(heads) + " heads; a cached row has " +
                                  std::to_string(cache.head_dim) + " elements");
    }
    args_ = {{out.at, q.at, cache.k, nullptr, cache.k_scale, nullptr, nullptr, batch.query_start_loc,
              batch.seq_lens, batch.block_tables, batch.num, batch.block_table_stride, heads,
              latent_runs(heads), rank, cache.block_size, out.stride, q.stride,
              cache.k_block_stride, 0, 0, false, true, static_cast<float>(scale * cache.k_unit), 0.0f,
              static_cast<float>(cache.k_unit), q.dtype, {}, nullptr, nullptr, nullptr,
              nullptr, false},
             q_rope.at, q_rope.stride, q_rope.cols / heads, rope};
  }
  const char* name() const override { return "latent_attention"; }
  int64_t& rows() override { return rows_; }
  std::vector<Operand> operands() override {
    AttentionArgs& a = args_.base;
    return operands_at(a.out, a.q, args_.q_rope, a.query_start_loc, a.seq_lens, a.block_tables);
  }
  void set_inputs(const std::vector<StepInput>& inputs) override {
    set_sequences(args_.base, inputs);
  }

  void run(Pool& pool) override {
    const int64_t plan = attention_plan_bytes(args_.base, rows_, pool.threads());
    const int64_t floats = latent_room_floats(args_);
    const int64_t bytes = plan + pool.threads() * floats * static_cast<int64_t>(sizeof(float));
    uint8_t* const memory = static_cast<uint8_t*>(pool.scratch(bytes));
    const int64_t tasks = plan_attention(args_.base, rows_, memory, pool.threads(), split_);
    float* const rooms = reinterpret_cast<float*>(memory + plan);
    // Each of as many jobs as threads takes the next task, and has a room of the memory.
    std::atomic<int64_t> next{0};
    run_tasks(pool, std::min<int64_t>(tasks, pool.threads()), [&](int64_t job) {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        kernel_(args_, task, rooms + job * floats);
      }
    });
  }

  int64_t bytes() const override {
    const AttentionArgs& a = args_.base;
    int64_t tokens = 0;
    for (int64_t s = 0; s < a.num_seqs; ++s) tokens += a.seq_lens[s];
    return tokens * token_bytes_ + rows_ * a.heads * (2 * a.head_dim + args_.rope) *
                                       item_bytes(static_cast<DType>(a.q_dtype));
  }

  int64_t flops() const override {
    const AttentionArgs& a = args_.base;
    int64_t pairs = 0;  // of a query row and a key that it sees
    for (int64_t s = 0; s < a.num_seqs; ++s) {
      const int64_t rows = a.query_start_loc[s + 1] - a.query_start_loc[s];
      pairs += rows * a.seq_lens[s] - rows * (rows - 1) / 2;
    }
    return 2 * pairs * a.heads * (2 * a.head_dim + args_.rope);
  }

 private:
  void (*kernel_)(const LatentArgs&, int64_t task, float* room);
  int64_t rows_, token_bytes_;
  AttentionSplit split_;
  LatentArgs args_;
};

}  // namespace

void bind_latent_op(nb::module_& m) {
  def_op<LatentAttention, const Matrix&, const Matrix&, const Matrix&, const KvCache&,
         const Sequences&, int64_t, double, int>(m, "latent_attention");
}

}  // namespace quire
