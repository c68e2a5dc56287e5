// Binding of paged attention.
#include "bind.h"

#include <stdexcept>

#include "cpu/attention_plan.h"
#include "submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

void paged_attention(const Kernels& kernels, Pool& pool, int q_dtype, int kv_dtype, uintptr_t out,
                     uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t k_scale, uintptr_t v_scale,
                     uintptr_t query_start_loc, uintptr_t seq_lens, uintptr_t block_tables,
                     int64_t tokens, int64_t num_seqs, int64_t block_table_stride, int64_t heads,
                     int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t out_stride,
                     int64_t q_stride, int64_t k_block_stride, int64_t v_block_stride,
                     int64_t window, bool causal, float scale, float softcap, float v_unit,
                     int split, int64_t thread_tasks, int64_t tall_rows, int64_t ahead_bytes) {
  dtype_of(q_dtype);  // checks it
  cache_dtype_of(kv_dtype);
  if (split < 0 || split > static_cast<int>(AttentionSplit::kAlways)) {
    throw std::invalid_argument("unknown split");
  }
  const AttentionTuning tuning = {thread_tasks, tall_rows, ahead_bytes};
  if (thread_tasks < 0 || thread_tasks > kMostThreadTasks || tall_rows < 0 || ahead_bytes < 0) {
    throw std::invalid_argument("no such tuning of attention");
  }
  if (kv_heads < 1 || attention_tile_positions(heads, kv_heads) == 0) {
    throw std::invalid_argument("no kv heads, or too many heads a kv head");
  }
  const AttentionArgs args{pointer(out), pointer(q), pointer(k), pointer(v),
                           pointer<bf16>(k_scale), pointer<bf16>(v_scale),
                           pointer<int32_t>(query_start_loc), pointer<int32_t>(seq_lens),
                           pointer<int32_t>(block_tables), num_seqs, block_table_stride, heads,
                           kv_heads, head_dim, block_size, out_stride, q_stride, k_block_stride,
                           v_block_stride, window, causal, scale, softcap, v_unit, q_dtype, tuning,
                           nullptr, nullptr, nullptr};
  const int64_t head_bytes = kv_dtype >= kInt8 ? head_dim + (k_scale != 0 ? 2 : 0)
                                               : head_dim * (kv_dtype == kFloat32 ? 4 : 2);
  submit(pool, AttentionOp{kernels.attention.paged_attention[kv_dtype], args, tokens,
                           2 * kv_heads * head_bytes, static_cast<AttentionSplit>(split)});
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
