// RMSNorm and LayerNorm, each also of a sum; and RMSNorm with a gate.
#include "../bind.h"
#include "../cpu/row_op.h"
#include "../submit.h"

namespace quire {

namespace {

// An RMSNorm or, with a bias, a LayerNorm; of x, or of x + residual.
struct Norm final : RowOp<NormArgs> {
  Norm(const Kernels& k, const Matrix& y, const Matrix& x, const Matrix& weight, float eps)
      : Norm(k, y, nullptr, x, nullptr, weight, nullptr, eps) {}
  Norm(const Kernels& k, const Matrix& y, const Matrix& residual_out, const Matrix& x,
       const Matrix& residual, const Matrix& weight, float eps)
      : Norm(k, y, &residual_out, x, &residual, weight, nullptr, eps) {}
  Norm(const Kernels& k, const Matrix& y, const Matrix& x, const Matrix& weight, const Matrix& bias,
       float eps)
      : Norm(k, y, nullptr, x, nullptr, weight, &bias, eps) {}
  Norm(const Kernels& k, const Matrix& y, const Matrix& residual_out, const Matrix& x,
       const Matrix& residual, const Matrix& weight, const Matrix& bias, float eps)
      : Norm(k, y, &residual_out, x, &residual, weight, &bias, eps) {}

  const char* name() const override {
    if (args_.bias == nullptr) return args_.residual == nullptr ? "rms_norm" : "add_rms_norm";
    return args_.residual == nullptr ? "layer_norm" : "add_layer_norm";
  }
  std::vector<Operand> operands() override {
    if (args_.residual == nullptr) return operands_at(args_.y, args_.x);
    return operands_at(args_.y, args_.residual_out, args_.x, args_.residual);
  }
  int64_t flops() const override {
    return ((args_.bias == nullptr ? 4 : 7) + (args_.residual != nullptr)) * elements();
  }

 private:
  Norm(const Kernels& k, const Matrix& y, const Matrix* residual_out, const Matrix& x,
       const Matrix* residual, const Matrix& weight, const Matrix* bias, float eps)
      : RowOp((bias == nullptr ? k.fused.rms_norm : k.fused.layer_norm)[x.dtype],
              {y.at, nullptr, x.at, nullptr, weight.at, nullptr, x.rows, x.cols, y.stride, 0, x.stride,
               0, eps, expect_vector("weight", weight, x.cols, x, bias == nullptr), 0},
              (residual == nullptr ? 2 : 4) * x.row_bytes()) {
    if (bias != nullptr) {
      expect_vector("bias", *bias, x.cols, x);
      args_.bias = bias->at;
    }
    expect_same("y", y, "x", x);
    if (residual == nullptr) return;
    expect_same("residual", *residual, "x", x);
    expect_same("residual_out", *residual_out, "x", x);
    args_.residual = residual->at;
    args_.residual_stride = residual->stride;
    args_.residual_out = residual_out->at;
    args_.residual_out_stride = residual_out->stride;
  }
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
  def_op<Norm, const Matrix&, const Matrix&, const Matrix&, float>(m, "rms_norm");
  def_op<Norm, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Matrix&,
         float>(m, "add_rms_norm");
  def_op<Norm, const Matrix&, const Matrix&, const Matrix&, const Matrix&, float>(
      m, "layer_norm");
  def_op<GatedNorm, const Matrix&, const Matrix&, const Matrix&, uintptr_t, int64_t, int64_t, float,
         int, bool, int64_t>(m, "gated_norm");
  def_op<Norm, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Matrix&,
         const Matrix&, float>(m, "add_layer_norm");
}

}  // namespace quire
