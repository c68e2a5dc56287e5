// Binding of paged attention.
#include "bind_attention.h"

#include <stdexcept>

#include "cpu/attention_plan.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"

namespace nb = nanobind;

namespace quire {

namespace {

struct Job {
  const AttentionArgs* args;
  void (*task)(const AttentionArgs&, int64_t);
};

void run_task(void* job, int64_t task) {
  const Job& j = *static_cast<const Job*>(job);
  j.task(*j.args, task);
}

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void paged_attention(const Kernels& kernels, Pool& pool, int q_dtype, int kv_dtype, uintptr_t out,
                     uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t k_scale, uintptr_t v_scale,
                     uintptr_t query_start_loc,
                     uintptr_t seq_lens, uintptr_t block_tables, int64_t tokens, int64_t num_seqs,
                     int64_t block_table_stride, int64_t heads, int64_t kv_heads, int64_t head_dim,
                     int64_t block_size, int64_t out_stride, int64_t q_stride,
                     int64_t k_block_stride, int64_t v_block_stride, int64_t window, float scale) {
  if (q_dtype < 0 || q_dtype >= kDTypeCount || kv_dtype < 0 || kv_dtype >= kCacheDTypeCount) {
    throw std::invalid_argument("unknown dtype code");
  }
  const int64_t positions = attention_tile_positions(heads, kv_heads);
  if (positions == 0) throw std::invalid_argument("too many heads a kv head");
  const nb::gil_scoped_release unlocked;
  AttentionArgs args{pointer<void>(out), pointer<void>(q), pointer<void>(k), pointer<void>(v),
                     pointer<bf16>(k_scale), pointer<bf16>(v_scale),
                     pointer<int32_t>(query_start_loc), pointer<int32_t>(seq_lens),
                     pointer<int32_t>(block_tables), num_seqs, block_table_stride, heads, kv_heads,
                     head_dim, block_size, out_stride, q_stride, k_block_stride, v_block_stride,
                     window, scale, q_dtype, nullptr, 0, 1};
  const int64_t most = attention_max_tiles(tokens, num_seqs, positions);
  auto* tiles = static_cast<AttentionTile*>(
      pool.scratch(most * static_cast<int64_t>(sizeof(AttentionTile))));
  const int64_t tasks = plan_attention(args, tiles, pool.threads());
  Job job{&args, kernels.attention.paged_attention[kv_dtype]};
  pool.run(tasks, run_task, &job);
}

void exp2_floats(const Kernels& kernels, uintptr_t y, uintptr_t x, int64_t count) {
  const nb::gil_scoped_release unlocked;
  kernels.attention.exp2(pointer<float>(y), pointer<float>(x), count);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("paged_attention", &paged_attention);
  m.def("exp2", &exp2_floats);
}

}  // namespace quire
