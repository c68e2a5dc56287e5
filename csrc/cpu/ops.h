// The operations of a decoder's step: what each needs, and how it runs on the pool.
//
// An op is plain data. It is run at once, or recorded into a plan (plan.h), which runs it in later
// steps with other addresses and numbers of rows. Both come through `run`, so both give the same
// bits. Baseline code.
#pragma once

#include <variant>

#include "attention_plan.h"
#include "kernels.h"
#include "linear.h"
#include "packed_weight.h"
#include "pool.h"
#include "rank_group.h"

namespace quire {

// An op of fused.h; its rows are cut into tasks by the rule of row_blocks.h.
template <class Args>
struct RowOp {
  const char* name;
  void (*kernel)(const Args&, int64_t task);
  Args args;
  int64_t row_bytes;  // moved for a row
};

// Rows `ids` of a packed weight [n, k], as an embedding: y is [rows, k], contiguous.
struct LookupOp {
  const PackedWeight* weight;
  DType dtype;
  void* y;
  const int64_t* ids;
  int64_t rows;
};

struct LinearOp {
  const Kernels* kernels;
  const PackedWeight* weight;
  void* y;
  DType y_dtype;
  int64_t y_stride;
  const void* x;
  DType x_dtype;
  int64_t x_stride, rows;
};

// The fields of `args` that follow from the batch are `run`'s to fill.
struct AttentionOp {
  void (*kernel)(const AttentionArgs&, int64_t task);
  AttentionArgs args;
  int64_t rows;
  int64_t token_bytes;  // of keys and values
  AttentionSplit split = AttentionSplit::kAutomatic;
};

// Adds low-rank adapters to y, in place. What of `args` follows from the rows' adapters is `run`'s to
// fill: `low` and `rank`.
struct LoraOp {
  void (*shrink)(const LoraArgs&, int64_t task);
  void (*expand)(const LoraArgs&, int64_t task);
  LoraArgs args;
  DType dtype, y_dtype;
};

// y [rows, cols] = the sum over a group's ranks of their x, contiguous both (rank_group.h).
struct AllReduceOp {
  const Kernels* kernels;
  RankGroup* group;
  void* y;
  DType dtype;
  const float* x;
  int64_t rows, cols;
};

// Rows `ids` of a table of `vocab` rows as an embedding, of which this rank has `count` from `first`
// on: in `weight`, or where that is null, in `table`. y is [rows, cols], contiguous.
struct SharedLookupOp {
  RankGroup* group;
  const PackedWeight* weight;
  const void* table;
  int64_t table_stride;  // in elements
  DType dtype;           // y's, and that of `table`
  void* y;
  const int64_t* ids;
  int64_t rows, cols, first, count, vocab;
};

// y [rows, width] from the ranks' x [rows, cols], whose columns are those from `first` on; contiguous
// both.
struct AllGatherOp {
  RankGroup* group;
  float* y;
  const float* x;
  int64_t rows, cols, first, width;
};

using Op = std::variant<RowOp<RmsNormArgs>, RowOp<AddRmsNormArgs>, RowOp<LayerNormArgs>,
                        RowOp<AddLayerNormArgs>, RowOp<UnaryArgs>, RowOp<AddArgs>,
                        RowOp<EmbeddingArgs>, RowOp<RotaryArgs>, RowOp<RopeKvArgs>, LookupOp,
                        LinearOp, AttentionOp, LoraOp, AllReduceOp, SharedLookupOp, AllGatherOp>;

// Indices, one a row, into a table of `limit` rows; from `least` on, which may stand for none.
struct IndexCheck {
  const char* what;
  const int64_t* indices;
  int64_t limit;
  int64_t least = 0;
};

// Throws std::out_of_range that names the first of `rows` indices that is not in [least, limit).
void check_indices(const IndexCheck& check, int64_t rows);

// Computes the op with all of the pool's threads. Its indices are the caller's to check.
void run(Pool& pool, Op& op);

// Whether `next` is a linear op that reads just what `op` writes, a row for a row.
bool feeds(Op& op, Op& next);
// Computes `op`; each task also makes the rows that it has written ready for `next`, which is what
// `next` begins with, at the price of no pass over x and no meeting of the threads.
void run_and_prepare(Pool& pool, Op& op, const Linear& next);
Linear start(Pool& pool, const LinearOp& op);

const char* name_of(const Op& op);
// Bytes that the op must move, as it stands: weights, activations, keys and values.
int64_t bytes_of(const Op& op);
// Its arithmetic: two a multiply-add, and one for a function such as exp.
int64_t flops_of(const Op& op);
// The op's rows, to read and to write.
int64_t& rows_of(Op& op);

// f(check) for each kind of index that the op reads.
template <class F>
void each_index(Op& op, const F& f);

// f(field, constant) for each pointer to what a step computes or brings along; weights and caches
// are not among them. `constant`: the field may point to one all the same.
template <class F>
void each_operand(Op& op, const F& f);

// The rest is the definition of these two.

template <class Args, class F>
void each_index_of(const RowOp<Args>&, const F&) {}

template <class F>
void each_index_of(const RowOp<EmbeddingArgs>& op, const F& f) {
  f(IndexCheck{"token id", op.args.ids, op.args.vocab});
  if (op.args.position_weight != nullptr) {
    f(IndexCheck{"position", op.args.positions, op.args.max_positions});
  }
}

template <class F>
void each_index_of(const RowOp<RotaryArgs>& op, const F& f) {
  f(IndexCheck{"position", op.args.positions, op.args.max_positions});
}

template <class F>
void each_index_of(const RowOp<RopeKvArgs>& op, const F& f) {
  if (op.args.cos_sin != nullptr) {
    f(IndexCheck{"position", op.args.positions, op.args.max_positions});
  }
  f(IndexCheck{"slot", op.args.slot_mapping, op.args.slots});
}

template <class F>
void each_index_of(const LookupOp& op, const F& f) {
  f(IndexCheck{"token id", op.ids, op.weight->n()});
}

template <class F>
void each_index_of(const LinearOp&, const F&) {}
template <class F>
void each_index_of(const AttentionOp&, const F&) {}
template <class F>
void each_index_of(const AllReduceOp&, const F&) {}
template <class F>
void each_index_of(const AllGatherOp&, const F&) {}

template <class F>
void each_index_of(const SharedLookupOp& op, const F& f) {
  f(IndexCheck{"token id", op.ids, op.vocab});
}

template <class F>
void each_index_of(const LoraOp& op, const F& f) {
  f(IndexCheck{"adapter", op.args.adapter, op.args.adapters, -1});
}

template <class F>
void each_index(Op& op, const F& f) {
  std::visit([&](auto& o) { each_index_of(o, f); }, op);
}

template <class F, class... Pointers>
void each_field(const F& f, Pointers&... fields) {
  (f(fields, false), ...);
}

template <class F>
void each_operand_of(RowOp<RmsNormArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.x);
}
template <class F>
void each_operand_of(RowOp<AddRmsNormArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.residual_out, op.args.x, op.args.residual);
}
template <class F>
void each_operand_of(RowOp<LayerNormArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.x);
}
template <class F>
void each_operand_of(RowOp<AddLayerNormArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.residual_out, op.args.x, op.args.residual);
}
template <class F>
void each_operand_of(RowOp<UnaryArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.x);
}
template <class F>
void each_operand_of(RowOp<AddArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.a, op.args.b);
}
template <class F>
void each_operand_of(RowOp<EmbeddingArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.ids, op.args.positions);
  f(op.args.weight, true);
}
template <class F>
void each_operand_of(RowOp<RotaryArgs>& op, const F& f) {
  each_field(f, op.args.y, op.args.x, op.args.positions);
}
template <class F>
void each_operand_of(RowOp<RopeKvArgs>& op, const F& f) {
  each_field(f, op.args.q_out, op.args.q, op.args.k, op.args.v, op.args.positions,
             op.args.slot_mapping);
}
template <class F>
void each_operand_of(LookupOp& op, const F& f) {
  each_field(f, op.y, op.ids);
}
template <class F>
void each_operand_of(LinearOp& op, const F& f) {
  each_field(f, op.y, op.x);
}
template <class F>
void each_operand_of(AttentionOp& op, const F& f) {
  each_field(f, op.args.out, op.args.q, op.args.query_start_loc, op.args.seq_lens,
             op.args.block_tables);
}

template <class F>
void each_operand_of(LoraOp& op, const F& f) {
  each_field(f, op.args.y, op.args.x, op.args.adapter);
}

template <class F>
void each_operand_of(AllReduceOp& op, const F& f) {
  each_field(f, op.y, op.x);
}

template <class F>
void each_operand_of(SharedLookupOp& op, const F& f) {
  each_field(f, op.y, op.ids);
}

template <class F>
void each_operand_of(AllGatherOp& op, const F& f) {
  each_field(f, op.y, op.x);
}

template <class F>
void each_operand(Op& op, const F& f) {
  std::visit([&](auto& o) { each_operand_of(o, f); }, op);
}

}  // namespace quire
