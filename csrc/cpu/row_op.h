// Ops whose rows are split into tasks as in row_blocks.h.
#pragma once

#include <algorithm>

#include "kernels.h"
#include "op.h"
#include "row_blocks.h"

namespace quire {

// An op that calls one kernel of fused.h.
template <class Args>
class RowOp : public Op {
 public:
  int64_t& rows() override { return args_.rows; }
  int64_t bytes() const override { return args_.rows * row_bytes_; }

  void run(Pool& pool) override {
    args_.task_rows = rows_a_task(args_.rows, row_bytes_);
    run_tasks(pool, row_tasks(args_.rows, args_.task_rows),
              [&](int64_t task) { kernel_(args_, task); });
  }

  const void* result() const override {
    if constexpr (requires { args_.y; }) return args_.y;
    return nullptr;
  }

  // A task has whole blocks of kPrepareRows rows.
  void run_and_prepare(Pool& pool, const Linear& next) override {
    const int64_t wanted = rows_a_task(args_.rows, row_bytes_);
    args_.task_rows = (wanted + kPrepareRows - 1) / kPrepareRows * kPrepareRows;
    const int64_t blocks = args_.task_rows / kPrepareRows;
    const int64_t all = next.gemm->prepare_tasks(next.args);
    run_tasks(pool, row_tasks(args_.rows, args_.task_rows), [&](int64_t task) {
      kernel_(args_, task);
      const int64_t last = std::min(all, (task + 1) * blocks);
      for (int64_t block = task * blocks; block < last; ++block) {
        next.gemm->prepare(next.args, block);
      }
    });
  }

 protected:
  using Kernel = void (*)(const Args&, int64_t task);

  // `row_bytes` is what the op moves per row.
  RowOp(Kernel kernel, const Args& args, int64_t row_bytes)
      : kernel_(kernel), args_(args), row_bytes_(row_bytes) {}

  int64_t elements() const
    requires requires(Args a) { a.cols; }
  {
    return args_.rows * args_.cols;
  }

  Kernel kernel_;
  Args args_;
  int64_t row_bytes_;
};

}  // namespace quire
