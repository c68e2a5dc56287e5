#include "linear.h"

namespace quire {

namespace {

void run(Pool& pool, const Linear& linear, int64_t tasks, void (*task)(const GemmArgs&, int64_t)) {
  struct Job {
    const GemmArgs& args;
    void (*task)(const GemmArgs&, int64_t);
  };
  const auto body = [](void* context, int64_t index) {
    const Job& job = *static_cast<const Job*>(context);
    job.task(job.args, index);
  };
  Job job = {linear.args, task};
  pool.run(tasks, body, &job, Deal::kShares);
}

}  // namespace

Linear start(const Kernels& kernels, Pool& pool, const PackedWeight& weight, void* y, DType y_dtype,
             int64_t y_stride, const void* x, DType x_dtype, int64_t x_stride, int64_t rows) {
  weight.use();
  const Gemm& gemm = *kernels.gemm[weight.kind()];
  GemmArgs args = weight.args();
  args.y = y;
  args.y_dtype = y_dtype;
  args.y_stride = y_stride;
  args.x = x;
  args.x_dtype = x_dtype;
  args.x_stride = x_stride;
  args.rows = rows;
  args.threads = pool.threads();
  args.tuning = weight.tuning(rows);
  const int64_t bytes = gemm.scratch_bytes(args);
  if (bytes > 0) args.scratch = pool.scratch(bytes);
  return {&gemm, args};
}

void prepare(Pool& pool, const Linear& linear) {
  run(pool, linear, linear.gemm->prepare_tasks(linear.args), linear.gemm->prepare);
}

void multiply(Pool& pool, const Linear& linear) {
  run(pool, linear, linear.gemm->tasks(linear.args), linear.gemm->task);
}

}  // namespace quire
