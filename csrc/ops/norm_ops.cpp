// RMSNorm and LayerNorm, each also of a sum; and RMSNorm with a gate.
#include "../bind.h"
#include "../cpu/row_op.h"
#include "../submit.h"

namespace quire {

namespace {

struct RmsNorm final : RowOp<RmsNormArgs> {
  RmsNorm(const Kernels& k, const Matrix& y, const Matrix& x, const Matrix& weight, float eps)
      : RowOp(k.fused.rms_norm[x.dtype],
              {y.at, x.at, weight.at, x.rows, x.cols, y.stride, x.stride, eps,
               expect_vector("weight", weight, x.cols, x, true), 0},
              2 * x.row_bytes()) {
    expect_same("y", y, "x", x);
  }
  const char* name() const override { return "rms_norm"; }
  std::vector<Operand> operands() override { return operands_at(args_.y, args_.x); }
  int64_t flops() const override { return 4 * elements(); }
};

struct AddRmsNorm final : RowOp<AddRmsNormArgs> {
  AddRmsNorm(const Kernels& k, const Matrix& y, const Matrix& residual_out, const Matrix& x,
             const Matrix& residual, const Matrix& weight, float eps)
      : RowOp(k.fused.add_rms_norm[x.dtype],
              {y.at, residual_out.at, x.at, residual.at, weight.at, x.rows, x.cols, y.stride,
               residual_out.stride, x.stride, residual.stride, eps,
               expect_vector("weight", weight, x.cols, x, true), 0},
              4 * x.row_bytes()) {
    expect_same("residual", residual, "x", x);
    expect_same("y", y, "x", x);
    expect_same("residual_out", residual_out, "x", x);
  }
  const char* name() const override { return "add_rms_norm"; }
  std::vector<Operand> operands() override {
    return operands_at(args_.y, args_.residual_out, args_.x, args_.residual);
  }
  int64_t flops() const override { return 5 * elements(); }
};

struct LayerNorm final : RowOp<LayerNormArgs> {
  LayerNorm(const Kernels& k, const Matrix& y, const Matrix& x, const Matrix& weight,
            const Matrix& bias, float eps)
      : RowOp(k.fused.layer_norm[x.dtype],
              {y.at, x.at, weight.at, bias.at, x.rows, x.cols, y.stride, x.stride, eps, 0},
              2 * x.row_bytes()) {
    expect_vector("weight", weight, x.cols, x);
    expect_vector("bias", bias, x.cols, x);
    expect_same("y", y, "x", x);
  }
  const char* name() const override { return "layer_norm"; }
  std::vector<Operand> operands() override { return operands_at(args_.y, args_.x); }
  int64_t flops() const override { return 7 * elements(); }
};

struct AddLayerNorm final : RowOp<AddLayerNormArgs> {
  AddLayerNorm(const Kernels& k, const Matrix& y, const Matrix& residual_out, const Matrix& x,
               const Matrix& residual, const Matrix& weight, const Matrix& bias, float eps)
      : RowOp(k.fused.add_layer_norm[x.dtype],
              {y.at, residual_out.at, x.at, residual.at, weight.at, bias.at, x.rows, x.cols,
               y.stride, residual_out.stride, x.stride, residual.stride, eps, 0},
              4 * x.row_bytes()) {
    expect_vector("weight", weight, x.cols, x);
    expect_vector("bias", bias, x.cols, x);
    expect_same("residual", residual, "x", x);
    expect_same("y", y, "x", x);
    expect_same("residual_out", residual_out, "x", x);
  }
  const char* name() const override { return "add_layer_norm"; }
  std::vector<Operand> operands() override {
    return operands_at(args_.y, args_.residual_out, args_.x, args_.residual);
  }
  int64_t flops() const override { return 8 * elements(); }
};

struct GatedNorm final : RowOp<GatedNormArgs> {
  GatedNorm(const Kernels& k, const Matrix& y, const Matrix& x, const Matrix& gate, uintptr_t weight,
            int64_t weights, int64_t group, float eps, int kind, bool norm_first, int64_t each)
      : RowOp(k.fused.gated_norm[x.dtype],
              {y.at, x.at, gate.at, pointer<float>(weight), x.rows, x.cols, group, y.stride, x.stride,
               gate.stride, each, eps, static_cast<Gate>(kind), norm_first, weights != x.cols, 0},
              3 * x.row_bytes()) {
    expect_same("y", y, "x", x);
    if (each < 1 || (each > 1 && weight != 0) || gate.cols * each != x.cols || gate.rows != x.rows ||
        gate.dtype != x.dtype) {
      throw std::invalid_argument("gate is " + describe(gate) + ", and x " + describe(x));
    }
    if (kind < kSigmoid || kind > kFactor) throw std::invalid_argument("unknown kind of gate");
    if (weight != 0 && (group < 1 || x.cols % group != 0 || (weights != group && weights != x.cols))) {
      throw std::invalid_argument("a weight of " + std::to_string(weights) + " does not fit groups of " +
                                  std::to_string(group) + " of x, which is " + describe(x));
    }
  }
  const char* name() const override { return "gated_norm"; }
  std::vector<Operand> operands() override { return operands_at(args_.y, args_.x, args_.gate); }
  int64_t flops() const override { return 7 * elements(); }
};

}  // namespace

void bind_norm_ops(nanobind::module_& m) {
  def_op<RmsNorm, const Matrix&, const Matrix&, const Matrix&, float>(m, "rms_norm");
  def_op<AddRmsNorm, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Matrix&,
         float>(m, "add_rms_norm");
  def_op<LayerNorm, const Matrix&, const Matrix&, const Matrix&, const Matrix&, float>(
      m, "layer_norm");
  def_op<GatedNorm, const Matrix&, const Matrix&, const Matrix&, uintptr_t, int64_t, int64_t, float,
         int, bool, int64_t>(m, "gated_norm");
  def_op<AddLayerNorm, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Matrix&,
         const Matrix&, float>(m, "add_layer_norm");
}

}  // namespace quire
