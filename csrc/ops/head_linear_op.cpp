// A product of its own for each head.
#include <algorithm>

#include "../bind.h"
#include "../cpu/kernels.h"
#include "../cpu/op.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

// y[r, h] = x[r, h, first : first + k] · weight[h]ᵀ. x and y have a row's heads one after the other; the
// experts of `weight` are the heads.
struct HeadLinear final : Op {
  HeadLinear(const Kernels& kernels, const PackedWeight& weight, const Matrix& y, const Matrix& x,
             int64_t first)
      : gemm_(*kernels.gemm[weight.kind()]), weight_(weight), y_(y), x_(x), first_(first) {
    const int64_t width = x.cols / heads();
    expect(x.rows == y.rows && x.cols % heads() == 0 && first >= 0 && first + weight.k() <= width &&
               y.cols == heads() * weight.columns(),
           "y", y, "x", x);
  }
  const char* name() const override { return "head_linear"; }
  int64_t& rows() override { return x_.rows; }
  std::vector<Operand> operands() override { return operands_at(y_.at, x_.at); }

  void run(Pool& pool) override {
    if (x_.rows == 0) return;
    weight_.use();
    GemmArgs shape = head(0, static_cast<int>((pool.threads() + heads() - 1) / heads()));
    const int64_t scratch = (gemm_.scratch_bytes(shape) + 63) / 64 * 64;
    uint8_t* const memory =
        scratch > 0 ? static_cast<uint8_t*>(pool.scratch(scratch * heads())) : nullptr;
    const auto each = [&](int64_t tasks, void (*kernel)(const GemmArgs&, int64_t)) {
      if (tasks == 0) return;
      run_tasks(pool, heads() * tasks, [&](int64_t task) {
        GemmArgs args = head(task / tasks, shape.threads);
        args.scratch = memory + task / tasks * scratch;
        kernel(args, task % tasks);
      });
    };
    each(gemm_.prepare_tasks(shape), gemm_.prepare);
    each(gemm_.tasks(shape), gemm_.task);
  }

  int64_t bytes() const override {
    return weight_.nbytes() +
           x_.rows * (heads() * weight_.k() * item_bytes(x_.dtype) + y_.row_bytes());
  }
  int64_t flops() const override { return 2 * x_.rows * weight_.k() * weight_.n(); }

 private:
  int64_t heads() const { return weight_.experts(); }

  GemmArgs head(int64_t h, int threads) const {
    GemmArgs args = weight_.args(h, 0, weight_.blocks());
    const int64_t x_at = h * (x_.cols / heads()) + first_, y_at = h * weight_.columns();
    args.x = static_cast<const uint8_t*>(x_.at) + x_at * item_bytes(x_.dtype);
    args.y = static_cast<uint8_t*>(y_.at) + y_at * item_bytes(y_.dtype);
    args.x_dtype = x_.dtype;
    args.y_dtype = y_.dtype;
    args.x_stride = x_.stride;
    args.y_stride = y_.stride;
    args.rows = x_.rows;
    args.threads = threads;
    args.tuning = weight_.tuning(x_.rows);
    return args;
  }

  const Gemm& gemm_;
  const PackedWeight& weight_;
  Matrix y_, x_;
  int64_t first_;
};

}  // namespace

void bind_head_linear_op(nb::module_& m) {
  def_op<HeadLinear, const PackedWeight&, const Matrix&, const Matrix&, int64_t>(m, "head_linear");
}

}  // namespace quire
