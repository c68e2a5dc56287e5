// Functions of elements, sums of rows, and the search for the largest logit.
#include <array>
#include <vector>

#include "../bind.h"
#include "../cpu/row_op.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

// y = f(x), of a gated activation f(gate, up) of x, which has both side by side.
struct Unary final : RowOp<UnaryArgs> {
  Unary(const char* name, Kernel kernel, const Matrix& y, const Matrix& x, int64_t reads,
        std::array<float, 3> p = {})
      : RowOp(kernel, {y.at, x.at, y.rows, y.cols, y.stride, x.stride, p[0], p[1], p[2], 0},
              (1 + reads) * y.row_bytes()),
        name_(name) {
    expect(x.rows == y.rows && x.cols == reads * y.cols && x.dtype == y.dtype, "y", y, "x", x);
  }
  const char* name() const override { return name_; }
  std::vector<Operand> operands() override { return operands_at(args_.y, args_.x); }
  int64_t flops() const override { return elements(); }

  const char* name_;
};

struct Add final : RowOp<AddArgs> {
  Add(const Kernels& k, const Matrix& out, const Matrix& x, const Matrix& y)
      : RowOp(k.fused.add_rows[x.dtype],
              {out.at, x.at, y.at, x.rows, x.cols, out.stride, x.stride, y.stride, 0},
              3 * x.row_bytes()) {
    expect_same("y", y, "x", x);
    expect_same("out", out, "x", x);
  }
  const char* name() const override { return "add"; }
  std::vector<Operand> operands() override { return operands_at(args_.y, args_.a, args_.b); }
  int64_t flops() const override { return elements(); }
};

void activation(const Kernels& k, Pool& pool, int epilogue, const Matrix& y, const Matrix& x) {
  if (epilogue <= kNoEpilogue || epilogue >= kEpilogueCount) {
    throw std::invalid_argument("unknown activation");
  }
  const int64_t reads = is_gated(static_cast<Epilogue>(epilogue)) ? 2 : 1;
  submit(pool, Unary("activation", k.fused.activation->of[epilogue][x.dtype], y, x, reads));
}

void scale(const Kernels& k, Pool& pool, const Matrix& y, const Matrix& x, float factor) {
  submit(pool, Unary("scale", k.fused.scale[x.dtype], y, x, 1, {factor}));
}

void softcap(const Kernels& k, Pool& pool, const Matrix& y, const Matrix& x, float cap) {
  submit(pool, Unary("softcap", k.fused.softcap[x.dtype], y, x, 1, {cap}));
}

void xielu(const Kernels& k, Pool& pool, const Matrix& y, const Matrix& x, float positive,
           float negative, float linear) {
  submit(pool, Unary("xielu", k.fused.xielu[x.dtype], y, x, 1, {positive, negative, linear}));
}

// tokens[r]: the first index of the row's largest, or -1 where peaks[r] (NaN outranks all) is not
// finite.
void argmax(const Kernels& kernels, Pool& pool, uintptr_t tokens, uintptr_t peaks,
            const Matrix& x) {
  if (x.dtype != kFloat32) throw std::invalid_argument("logits is " + describe(x) + "; wanted float32");
  const nb::gil_scoped_release unlocked;
  const int64_t pieces = (x.cols + kArgmaxColumns - 1) / kArgmaxColumns;
  std::vector<float> piece_peaks(static_cast<size_t>(x.rows * pieces));
  std::vector<int64_t> piece_tokens(static_cast<size_t>(x.rows * pieces));
  const ArgmaxArgs a{static_cast<const float*>(x.at), x.rows, x.cols, x.stride, piece_peaks.data(),
                     piece_tokens.data()};
  run_tasks(pool, x.rows * pieces, [&](int64_t task) { kernels.fused.argmax(a, task); });
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* candidates = piece_peaks.data() + r * pieces;
    int64_t best = 0;
    for (int64_t i = 0; i < pieces && candidates[best] == candidates[best]; ++i) {
      if (!(candidates[i] <= candidates[best])) best = i;  // larger, or NaN
    }
    const float peak = candidates[best];
    pointer<float>(peaks)[r] = peak;
    pointer<int64_t>(tokens)[r] =
        peak - peak == 0.0f ? piece_tokens[static_cast<size_t>(r * pieces + best)] : -1;
  }
}

}  // namespace

void bind_element_ops(nb::module_& m) {
  m.def("activation", &activation);
  m.def("scale", &scale);
  m.def("softcap", &softcap);
  m.def("xielu", &xielu);
  def_op<Add, const Matrix&, const Matrix&, const Matrix&>(m, "add");
  m.def("argmax", &argmax);
}

}  // namespace quire
