// A linear layer, and low-rank adapters of it.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "../bind.h"
#include "../cpu/kernels.h"
#include "../cpu/op.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

// y = epilogue(x · weightᵀ + bias).
struct LinearOp final : Op {
  LinearOp(const Kernels& kernels, const PackedWeight& weight, const Matrix& y, const Matrix& x)
      : kernels_(kernels), weight_(weight), y_(y), x_(x) {
    if (weight.experts() != 1) throw std::invalid_argument("experts are no weight of a linear layer");
    expect(x.rows == y.rows && x.cols == weight.k() && y.cols == weight.columns(), "y", y, "x", x);
  }
  const char* name() const override { return "linear"; }
  int64_t& rows() override { return x_.rows; }
  std::vector<Operand> operands() override { return operands_at(y_.at, x_.at); }
  void run(Pool& pool) override {
    const Linear linear = start(pool);
    prepare(pool, linear);
    multiply(pool, linear);
  }
  int64_t bytes() const override {
    return weight_.nbytes() +
           x_.rows * (x_.row_bytes() + weight_.n() * item_bytes(y_.dtype));
  }
  int64_t flops() const override { return 2 * x_.rows * weight_.k() * weight_.n(); }

  const PackedWeight* weight() const override { return &weight_; }
  const void* source() const override { return x_.at; }
  Linear start(Pool& pool) const override {
    return quire::start(kernels_, pool, weight_, y_.at, y_.dtype, y_.stride, x_.at, x_.dtype,
                        x_.stride, x_.rows);
  }

 private:
  const Kernels& kernels_;
  const PackedWeight& weight_;
  Matrix y_, x_;
};

// Adds low-rank adapters to y, in place. `run` fills `low` and `rank`, which follow from the rows'
// adapters. `entries`: LoraEntry [adapters, parts]; `ends`: of the layer's parts.
struct LoraAdd final : Op {
  LoraAdd(const Kernels& kernels, const Matrix& y, const Matrix& x, uintptr_t entries,
          int64_t adapters, const std::vector<int64_t>& ends, const Indices& adapter)
      : dtype_(x.dtype), y_dtype_(y.dtype), shrink_(kernels.lora.shrink[x.dtype]),
        expand_(y.dtype == x.dtype ? kernels.lora.expand[x.dtype]
                                   : kernels.lora.expand_wide[x.dtype]) {
    const auto parts = static_cast<int64_t>(ends.size());
    if (parts < 1 || parts > kLoraParts) throw std::invalid_argument("too many parts, or none");
    expect(x.rows == y.rows && (x.dtype == y.dtype || y.dtype == kFloat32), "x", x, "y", y);
    expect(adapter.size == y.rows, "adapter", adapter, "y", y);
    args_ = {y.at, x.at, pointer<const LoraEntry>(entries), adapter.at, nullptr, x.rows, x.cols,
             ends.back(), 0, adapters, parts, {}, y.stride, x.stride};
    std::copy(ends.begin(), ends.end(), args_.ends);
  }
  const char* name() const override { return "lora_add"; }
  int64_t& rows() override { return args_.rows; }
  std::vector<Operand> operands() override { return operands_at(args_.y, args_.x, args_.adapter); }
  std::vector<IndexCheck> indices() const override {
    return {{"adapter", args_.adapter, args_.adapters, -1}};
  }

  void run(Pool& pool) override {
    LoraArgs& a = args_;
    a.rank = 0;
    each_entry([&](const LoraEntry& e, int64_t, int64_t) { a.rank = std::max(a.rank, e.rank); });
    if (a.rank == 0) return;
    a.low = static_cast<float*>(pool.scratch(a.rows * a.parts * a.rank * 4));
    const auto pieces = [](int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; };
    const int64_t blocks = pieces(a.rows, kLoraRows);
    run_tasks(pool, blocks * a.parts * pieces(a.rank, kLoraRanks),
              [&](int64_t task) { shrink_(a, task); });
    run_tasks(pool, blocks * pieces(a.n, kLoraColumns), [&](int64_t task) { expand_(a, task); });
  }

  int64_t bytes() const override {
    int64_t elements = args_.rows * args_.k;
    each_entry([&](const LoraEntry& e, int64_t columns, int64_t) {
      elements += e.rank * (args_.k + columns);
    });
    return elements * item_bytes(dtype_) + 2 * args_.rows * args_.n * item_bytes(y_dtype_);
  }
  int64_t flops() const override {
    int64_t products = 0;
    each_entry([&](const LoraEntry& e, int64_t columns, int64_t rows) {
      products += rows * e.rank * (args_.k + columns);
    });
    return 2 * products;
  }

 private:
  // Calls f(entry, columns, rows) for each part of each run of rows with one adapter.
  template <class F>
  void each_entry(const F& f) const {
    const LoraArgs& a = args_;
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

  DType dtype_, y_dtype_;
  void (*shrink_)(const LoraArgs&, int64_t task);
  void (*expand_)(const LoraArgs&, int64_t task);
  LoraArgs args_;
};

// The part of `linear` that comes before any product; its result stays in the pool's scratch memory.
void prepare_linear(const Kernels& kernels, Pool& pool, const PackedWeight& weight,
                    const Matrix& x) {
  const nb::gil_scoped_release unlocked;
  prepare(pool, start(kernels, pool, weight, nullptr, kFloat32, 0, x.at, x.dtype, x.stride, x.rows));
}

}  // namespace

void bind_linear_op(nb::module_& m) {
  def_op<LinearOp, const PackedWeight&, const Matrix&, const Matrix&>(m, "linear");
  m.def("prepare_linear", &prepare_linear);
  def_op<LoraAdd, const Matrix&, const Matrix&, uintptr_t, int64_t, const std::vector<int64_t>&,
         const Indices&>(m, "lora_add");
}

}  // namespace quire
