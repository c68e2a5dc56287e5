#include "linear.h"

namespace quire {

void linear(const Kernels& kernels, Pool& pool, const PackedWeight& weight, void* y, DType y_dtype,
            int64_t y_stride, const void* x, DType x_dtype, int64_t x_stride, int64_t rows) {
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
  const int64_t bytes = gemm.scratch_bytes(args);
  if (bytes > 0) args.scratch = pool.scratch(bytes);

  struct Job {
    const GemmArgs& args;
    void (*task)(const GemmArgs&, int64_t);
  };
  const auto body = [](void* context, int64_t task) {
    const Job& job = *static_cast<const Job*>(context);
    job.task(job.args, task);
  };
  Job prepare = {args, gemm.prepare}, multiply = {args, gemm.task};
  pool.run(gemm.prepare_tasks(args), body, &prepare);
  pool.run(gemm.tasks(args), body, &multiply);
}

}  // namespace quire
