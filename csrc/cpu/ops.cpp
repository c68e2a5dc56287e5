#include "ops.h"

#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention_plan.h"
#include "row_blocks.h"

namespace quire {

namespace {

template <class Args>
void run_op(Pool& pool, RowOp<Args>& op) {
  Args& a = op.args;
  a.task_rows = rows_a_task(a.rows, op.row_bytes);
  run_tasks(pool, row_tasks(a.rows, a.task_rows), [&](int64_t task) { op.kernel(a, task); });
}

int64_t item_bytes(DType dtype) { return dtype == kFloat32 ? 4 : 2; }

constexpr int64_t kScatteredBytes = 16;  // read for a byte of a packed row: 4 of every 64

void run_op(Pool& pool, LookupOp& op) {
  const int64_t row_bytes = op.weight->k() * item_bytes(op.dtype);
  const int64_t task_rows = rows_a_task(op.rows, kScatteredBytes * row_bytes);
  run_tasks(pool, row_tasks(op.rows, task_rows), [&](int64_t task) {
    const int64_t begin = task * task_rows, count = std::min(task_rows, op.rows - begin);
    op.weight->lookup(op.ids + begin, count, op.dtype,
                      static_cast<uint8_t*>(op.y) + begin * row_bytes);
  });
}

void run_op(Pool& pool, LinearOp& op) {
  const Linear linear = start(pool, op);
  prepare(pool, linear);
  multiply(pool, linear);
}

void run_op(Pool& pool, AttentionOp& op) {
  AttentionArgs& a = op.args;
  void* memory = pool.scratch(attention_plan_bytes(a, op.rows, pool.threads()));
  const int64_t tasks = plan_attention(a, op.rows, memory, pool.threads(), op.split);
  run_tasks(pool, tasks, [&](int64_t task) { op.kernel(a, task); });
}

// Calls f(entry, columns, rows) for each part of each run of rows with one adapter.
template <class F>
void each_entry(const LoraArgs& a, const F& f) {
  for (int64_t begin = 0; begin < a.rows;) {
    int64_t end = begin + 1;
    while (end < a.rows && a.adapter[end] == a.adapter[begin]) ++end;
    for (int64_t part = 0; part < a.parts && a.adapter[begin] >= 0; ++part) {
      f(a.entries[a.adapter[begin] * a.parts + part],
        a.ends[part] - (part > 0 ? a.ends[part - 1] : 0), end - begin);
    }
    begin = end;
  }
}

void run_op(Pool& pool, LoraOp& op) {
  LoraArgs& a = op.args;
  a.rank = 0;
  each_entry(a, [&](const LoraEntry& e, int64_t, int64_t) { a.rank = std::max(a.rank, e.rank); });
  if (a.rank == 0) return;
  a.low = static_cast<float*>(pool.scratch(a.rows * a.parts * a.rank * 4));
  const auto pieces = [](int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; };
  const int64_t blocks = pieces(a.rows, kLoraRows);
  run_tasks(pool, blocks * a.parts * pieces(a.rank, kLoraRanks),
            [&](int64_t task) { op.shrink(a, task); });
  run_tasks(pool, blocks * pieces(a.n, kLoraColumns), [&](int64_t task) { op.expand(a, task); });
}

void run_op(Pool& pool, AllReduceOp& op) {
  op.group->sum(*op.kernels, pool, op.y, op.dtype, op.x, op.rows * op.cols);
}

void run_op(Pool& pool, SharedLookupOp& op) {
  const int64_t item = item_bytes(op.dtype), row_bytes = op.cols * item;
  uint8_t* const y = static_cast<uint8_t*>(op.y);
  const auto own = [&](int64_t row) -> int64_t {  // its place here, or -1
    const int64_t at = op.ids[row] - op.first;
    return at < op.count ? std::max<int64_t>(at, -1) : -1;
  };
  const int64_t task_rows = rows_a_task(op.rows, kScatteredBytes * row_bytes);
  run_tasks(pool, row_tasks(op.rows, task_rows), [&](int64_t task) {
    const int64_t begin = task * task_rows, end = std::min(op.rows, begin + task_rows);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = own(row);
      if (at < 0) continue;
      if (op.weight != nullptr) {
        op.weight->lookup(&at, 1, op.dtype, y + row * row_bytes);
      } else {
        memcpy(y + row * row_bytes,
               static_cast<const uint8_t*>(op.table) + at * op.table_stride * item,
               static_cast<size_t>(row_bytes));
      }
    }
  });
  op.group->gather(pool, y, op.rows, row_bytes, [&](int64_t row) {
    return RankGroup::Part{0, own(row) < 0 ? 0 : row_bytes, y + row * row_bytes};
  });
}

void run_op(Pool& pool, AllGatherOp& op) {
  op.group->gather(pool, op.y, op.rows, op.width * 4, [&](int64_t row) {
    return RankGroup::Part{op.first * 4, op.cols * 4, op.x + row * op.cols};
  });
}

template <class Args>
int64_t bytes(const RowOp<Args>& op) {
  return op.args.rows * op.row_bytes;
}
int64_t bytes(const LookupOp& op) { return 2 * op.rows * op.weight->k() * item_bytes(op.dtype); }
int64_t bytes(const LinearOp& op) {
  return op.weight->nbytes() + op.rows * (op.weight->k() * item_bytes(op.x_dtype) +
                                          op.weight->n() * item_bytes(op.y_dtype));
}
int64_t bytes(const AttentionOp& op) {
  const AttentionArgs& a = op.args;
  int64_t tokens = 0;
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t rows = a.query_start_loc[s + 1] - a.query_start_loc[s];
    tokens += std::min<int64_t>(a.seq_lens[s], a.window > 0 ? a.window + rows : a.seq_lens[s]);
  }
  return tokens * op.token_bytes +
         2 * op.rows * a.heads * a.head_dim * item_bytes(static_cast<DType>(a.q_dtype));
}

int64_t bytes(const LoraOp& op) {
  const LoraArgs& a = op.args;
  int64_t elements = a.rows * a.k;
  each_entry(a, [&](const LoraEntry& e, int64_t columns, int64_t) {
    elements += e.rank * (a.k + columns);
  });
  return elements * item_bytes(op.dtype) + 2 * a.rows * a.n * item_bytes(op.y_dtype);
}

int64_t bytes(const AllReduceOp& op) {  // reads x, writes its slot, reads all slots, writes y
  return op.rows * op.cols * (4 * (2 + op.group->ranks()) + item_bytes(op.dtype));
}

// Reads its rows, writes them to y, from there to the slots; reads all slots, writes y.
int64_t bytes(const SharedLookupOp& op) {
  const int64_t ranks = op.group->ranks();
  return op.rows * op.cols * item_bytes(op.dtype) * (4 + 2 * ranks) / ranks;
}

int64_t bytes(const AllGatherOp& op) { return op.rows * 8 * (op.cols + op.width); }

template <class Args>
int64_t elements(const RowOp<Args>& op) {
  return op.args.rows * op.args.cols;
}
int64_t flops(const RowOp<RmsNormArgs>& op) { return 4 * elements(op); }
int64_t flops(const RowOp<AddRmsNormArgs>& op) { return 5 * elements(op); }
int64_t flops(const RowOp<LayerNormArgs>& op) { return 7 * elements(op); }
int64_t flops(const RowOp<AddLayerNormArgs>& op) { return 8 * elements(op); }
int64_t flops(const RowOp<UnaryArgs>& op) { return elements(op); }
int64_t flops(const RowOp<AddArgs>& op) { return elements(op); }
int64_t flops(const RowOp<EmbeddingArgs>& op) {
  return op.args.position_weight != nullptr ? elements(op) : 0;
}
int64_t flops(const RowOp<RotaryArgs>& op) {
  return 3 * op.args.rows * op.args.heads * op.args.rotary_dim;
}
int64_t flops(const RowOp<RopeKvArgs>& op) {
  const RopeKvArgs& a = op.args;
  const int64_t turned = a.cos_sin != nullptr ? 3 * a.rotary_dim : 0;
  const int64_t q = turned + (a.q_norm != nullptr ? 4 * a.head_dim : 0);
  const int64_t k = turned + (a.k_norm != nullptr ? 4 * a.head_dim : 0);
  return a.rows * (a.heads * q + a.kv_heads * k);
}
int64_t flops(const LookupOp&) { return 0; }
int64_t flops(const LinearOp& op) { return 2 * op.rows * op.weight->k() * op.weight->n(); }
int64_t flops(const AttentionOp& op) {
  const AttentionArgs& a = op.args;
  int64_t pairs = 0;  // of a query row and a key that it sees
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t rows = a.query_start_loc[s + 1] - a.query_start_loc[s];
    const int64_t last = a.seq_lens[s], first = last - rows + 1;  // what its last and first row see
    const int64_t window = a.window > 0 ? a.window : last;
    const int64_t whole = std::max<int64_t>(0, std::min(rows, window - first + 1));
    const int64_t behind = whole * first + whole * (whole - 1) / 2 + (rows - whole) * window;
    pairs += a.causal ? behind : 2 * behind - rows;  // ahead it is the mirror image
  }
  return 4 * pairs * a.heads * a.head_dim;
}

int64_t flops(const LoraOp& op) {
  int64_t products = 0;
  each_entry(op.args, [&](const LoraEntry& e, int64_t columns, int64_t rows) {
    products += rows * e.rank * (op.args.k + columns);
  });
  return 2 * products;
}

int64_t flops(const AllReduceOp& op) { return op.rows * op.cols * (op.group->ranks() - 1); }
int64_t flops(const SharedLookupOp&) { return 0; }
int64_t flops(const AllGatherOp&) { return 0; }

template <class Args>
const char* name(const RowOp<Args>& op) {
  return op.name;
}
const char* name(const LookupOp&) { return "embedding"; }
const char* name(const LinearOp&) { return "linear"; }
const char* name(const AttentionOp&) { return "paged_attention"; }
const char* name(const LoraOp&) { return "lora_add"; }
const char* name(const AllReduceOp&) { return "all_reduce"; }
const char* name(const SharedLookupOp&) { return "vocab_embedding"; }
const char* name(const AllGatherOp&) { return "all_gather"; }

template <class Args>
int64_t& rows(RowOp<Args>& op) {
  return op.args.rows;
}
int64_t& rows(LookupOp& op) { return op.rows; }
int64_t& rows(LinearOp& op) { return op.rows; }
int64_t& rows(AttentionOp& op) { return op.rows; }
int64_t& rows(LoraOp& op) { return op.args.rows; }
int64_t& rows(AllReduceOp& op) { return op.rows; }
int64_t& rows(SharedLookupOp& op) { return op.rows; }
int64_t& rows(AllGatherOp& op) { return op.rows; }

// What an op of rows writes, if that is one matrix.
template <class Args>
const void* result(const RowOp<Args>& op) {
  return op.args.y;
}
const void* result(const RowOp<RopeKvArgs>&) { return nullptr; }
const void* result(const LookupOp&) { return nullptr; }
const void* result(const LinearOp&) { return nullptr; }
const void* result(const AttentionOp&) { return nullptr; }
const void* result(const LoraOp&) { return nullptr; }
const void* result(const AllReduceOp&) { return nullptr; }
const void* result(const SharedLookupOp&) { return nullptr; }
const void* result(const AllGatherOp&) { return nullptr; }

// Whole blocks of kPrepareRows rows a task.
template <class Args>
void run_and_prepare_op(Pool& pool, RowOp<Args>& op, const Linear& next) {
  Args& a = op.args;
  const int64_t wanted = rows_a_task(a.rows, op.row_bytes);
  a.task_rows = (wanted + kPrepareRows - 1) / kPrepareRows * kPrepareRows;
  const int64_t blocks = a.task_rows / kPrepareRows, all = next.gemm->prepare_tasks(next.args);
  run_tasks(pool, row_tasks(a.rows, a.task_rows), [&](int64_t task) {
    op.kernel(a, task);
    const int64_t last = std::min(all, (task + 1) * blocks);
    for (int64_t block = task * blocks; block < last; ++block) next.gemm->prepare(next.args, block);
  });
}
void run_and_prepare_op(Pool&, LookupOp&, const Linear&) {}
void run_and_prepare_op(Pool&, LinearOp&, const Linear&) {}
void run_and_prepare_op(Pool&, AttentionOp&, const Linear&) {}
void run_and_prepare_op(Pool&, LoraOp&, const Linear&) {}
void run_and_prepare_op(Pool&, AllReduceOp&, const Linear&) {}
void run_and_prepare_op(Pool&, SharedLookupOp&, const Linear&) {}
void run_and_prepare_op(Pool&, AllGatherOp&, const Linear&) {}

}  // namespace

Linear start(Pool& pool, const LinearOp& op) {
  return start(*op.kernels, pool, *op.weight, op.y, op.y_dtype, op.y_stride, op.x, op.x_dtype,
               op.x_stride, op.rows);
}

bool feeds(Op& op, Op& next) {
  const auto* linear = std::get_if<LinearOp>(&next);
  const void* written = std::visit([](const auto& o) { return result(o); }, op);
  return linear != nullptr && written != nullptr && written == linear->x &&
         rows_of(op) == linear->rows;
}

void run_and_prepare(Pool& pool, Op& op, const Linear& next) {
  std::visit([&](auto& o) { run_and_prepare_op(pool, o, next); }, op);
}

void check_indices(const IndexCheck& check, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    if (check.indices[i] < check.least || check.indices[i] >= check.limit) {
      throw std::out_of_range(std::string(check.what) + " " + std::to_string(check.indices[i]) +
                              " of row " + std::to_string(i) + " is not in [" +
                              std::to_string(check.least) + ", " + std::to_string(check.limit) +
                              ")");
    }
  }
}

void run(Pool& pool, Op& op) {
  std::visit([&](auto& o) { run_op(pool, o); }, op);
}

const char* name_of(const Op& op) {
  return std::visit([](const auto& o) { return name(o); }, op);
}

int64_t bytes_of(const Op& op) {
  return std::visit([](const auto& o) { return bytes(o); }, op);
}

int64_t flops_of(const Op& op) {
  return std::visit([](const auto& o) { return flops(o); }, op);
}

int64_t& rows_of(Op& op) {
  return std::visit([](auto& o) -> int64_t& { return rows(o); }, op);
}

}  // namespace quire
