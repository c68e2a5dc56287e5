// A mixture of experts: the router's choice, and the experts' feed-forward layers.
#include <nanobind/stl/vector.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../bind.h"
#include "../cpu/kernels.h"
#include "../cpu/op.h"
#include "../cpu/row_blocks.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

// The experts with the `top_k` highest logits of each row, by descending logits, of equal ones the
// first first, NaN above all; and their weights: softmax over all experts or sigmoid, in double,
// divided by their sum if that is asked for, and rounded once.
struct Route final : Op {
  Route(const Kernels&, uintptr_t experts, const Matrix& weights, const Matrix& logits,
        bool sigmoid, bool renormalize)
      : experts_(pointer<int64_t>(experts)), weights_(weights), logits_(logits), sigmoid_(sigmoid),
        renormalize_(renormalize) {
    const bool fits = logits.rows == weights.rows && weights.cols > 0 &&
                      weights.cols <= logits.cols &&
                      weights.dtype == kFloat32 && logits.dtype == kFloat32;
    expect(fits && weights.stride == weights.cols, "weights", weights, "logits", logits);
  }
  const char* name() const override { return "route"; }
  int64_t& rows() override { return logits_.rows; }
  std::vector<Operand> operands() override {
    return operands_at(experts_, weights_.at, logits_.at);
  }
  int64_t bytes() const override {
    return logits_.rows * (logits_.row_bytes() + 12 * weights_.cols);
  }
  int64_t flops() const override { return logits_.rows * logits_.cols; }

  void run(Pool& pool) override {
    constexpr int64_t kExpertBytes = 64;  // what is read in the time that an exp takes
    const int64_t rows = logits_.rows, task_rows = rows_a_task(rows, kExpertBytes * logits_.cols);
    run_tasks(pool, row_tasks(rows, task_rows), [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * task_rows);
      for (int64_t row = task * task_rows; row < end; ++row) route(row);
    });
  }

 private:
  static bool above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

  void route(int64_t row) const {
    const int64_t k = weights_.cols;
    const float* const logits = static_cast<const float*>(logits_.at) + row * logits_.stride;
    float* const weights = static_cast<float*>(weights_.at) + row * k;
    int64_t* const experts = experts_ + row * k;
    int64_t found = 0;
    for (int64_t e = 0; e < logits_.cols; ++e) {
      if (found == k && !above(logits[e], logits[experts[k - 1]])) continue;
      int64_t at = found < k ? found++ : k - 1;
      for (; at > 0 && above(logits[e], logits[experts[at - 1]]); --at) experts[at] = experts[at - 1];
      experts[at] = e;
    }
    const double peak = static_cast<double>(logits[experts[0]]);
    const auto score = [&](int64_t e) {
      const double x = static_cast<double>(logits[e]);
      return sigmoid_ ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x - peak);
    };
    double total = sigmoid_ ? 1.0 : 0.0;
    if (renormalize_) {
      total = 0.0;
      for (int64_t i = 0; i < k; ++i) total += score(experts[i]);
    } else if (!sigmoid_) {
      for (int64_t e = 0; e < logits_.cols; ++e) total += score(e);
    }
    for (int64_t i = 0; i < k; ++i) weights[i] = static_cast<float>(score(experts[i]) / total);
  }

  int64_t* experts_;  // [rows, top_k]
  Matrix weights_, logits_;
  bool sigmoid_, renormalize_;
};

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// y[r] = the sum over row r's experts of weight · down(gate_up(x[r])), in the order of its choice.
//
// Rows are sorted by expert, an expert's weights are read once for all of its rows, and a row's
// results are added in its own order, so that they do not depend on the others.
struct Moe final : Op {
  using Experts = std::vector<const PackedWeight*>;

  // Of each expert: gate_up [2 · width, hidden] with the epilogue silu_mul, down [hidden, width].
  Moe(const Kernels& kernels, const Experts& gate_up, const Experts& down, const Matrix& y,
      const Matrix& x, uintptr_t experts, const Matrix& weights)
      : kernels_(kernels), gate_up_(gate_up), down_(down), y_(y), x_(x),
        experts_(pointer<const int64_t>(experts)), weights_(weights) {
    if (gate_up.empty() || gate_up.size() != down.size()) {
      throw std::invalid_argument(std::to_string(gate_up.size()) + " experts' gate_up and " +
                                  std::to_string(down.size()) + " experts' down");
    }
    expect_same("y", y, "x", x);
    expect(weights.rows == x.rows && weights.dtype == kFloat32, "weights", weights, "x", x);
    for (size_t e = 0; e < down.size(); ++e) {
      const bool fits = gate_up[e]->k() == x.cols && gate_up[e]->columns() == down[e]->k() &&
                        down[e]->columns() == x.cols && down[e]->k() == down[0]->k();
      if (!fits) throw std::invalid_argument("expert " + std::to_string(e) + " does not fit x");
    }
  }
  const char* name() const override { return "moe"; }
  int64_t& rows() override { return x_.rows; }
  std::vector<Operand> operands() override {
    return operands_at(y_.at, x_.at, experts_, weights_.at);
  }
  int64_t bytes() const override {
    int64_t total = 2 * x_.rows * x_.row_bytes() + 12 * places();
    std::vector<bool> seen(gate_up_.size(), false);
    for (int64_t i = 0; i < places(); ++i) {
      const auto e = static_cast<size_t>(experts_[i]);
      if (!seen[e]) total += gate_up_[e]->nbytes() + down_[e]->nbytes();
      seen[e] = true;
    }
    return total;
  }
  int64_t flops() const override { return 6 * places() * x_.cols * width(); }

  void run(Pool& pool) override {
    const std::vector<int64_t> first = first_places();
    const int64_t size = item_bytes(x_.dtype), row_bytes = x_.row_bytes();
    const int64_t x_bytes = aligned(places() * row_bytes);
    const int64_t h_bytes = aligned(places() * width() * size);
    const int64_t z_bytes = aligned(places() * x_.cols * 4);
    const int64_t all = x_bytes + h_bytes + z_bytes + places() * 8;
    uint8_t* const x = static_cast<uint8_t*>(pool.scratch(all, Pool::kOuter));
    uint8_t* const h = x + x_bytes;
    float* const z = reinterpret_cast<float*>(h + h_bytes);
    int64_t* const place = reinterpret_cast<int64_t*>(h + h_bytes + z_bytes);

    std::vector<int64_t> next(first.begin(), first.end() - 1);
    for (int64_t i = 0; i < places(); ++i) place[i] = next[static_cast<size_t>(experts_[i])]++;
    const int64_t k = weights_.cols;
    run_tasks(pool, x_.rows, [&](int64_t row) {
      const uint8_t* const from = static_cast<const uint8_t*>(x_.at) + row * row_bytes;
      for (int64_t i = row * k; i < (row + 1) * k; ++i) {
        memcpy(x + place[i] * row_bytes, from, static_cast<size_t>(row_bytes));
      }
    });
    for (size_t e = 0; e < gate_up_.size(); ++e) {
      const int64_t begin = first[e], count = first[e + 1] - begin;
      if (count == 0) continue;
      uint8_t* const between = h + begin * width() * size;
      multiply_by(pool, *gate_up_[e], between, x_.dtype, x + begin * row_bytes, count);
      multiply_by(pool, *down_[e], z + begin * x_.cols, kFloat32, between, count);
    }
    const MixArgs mix = {y_.at, z, place, static_cast<const float*>(weights_.at), k, x_.cols};
    run_tasks(pool, x_.rows, [&](int64_t row) { kernels_.mix[x_.dtype](mix, row); });
  }

 private:
  int64_t width() const { return down_[0]->k(); }
  // A place is a row with one of its experts, sorted by expert.
  int64_t places() const { return x_.rows * weights_.cols; }

  // Of each expert, and behind the last. Throws std::out_of_range for one that is not there.
  std::vector<int64_t> first_places() const {
    const auto count = static_cast<int64_t>(gate_up_.size());
    const auto [least, most] = std::minmax_element(experts_, experts_ + places());
    if (places() > 0 && (*least < 0 || *most >= count)) {
      throw std::out_of_range("experts " + std::to_string(*least) + " to " +
                              std::to_string(*most) + " of " + std::to_string(count));
    }
    std::vector<int64_t> first(gate_up_.size() + 1, 0);
    for (int64_t i = 0; i < places(); ++i) ++first[static_cast<size_t>(experts_[i]) + 1];
    for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
    return first;
  }

  void multiply_by(Pool& pool, const PackedWeight& weight, void* y, DType y_dtype, const void* x,
                   int64_t rows) const {
    const Linear linear = quire::start(kernels_, pool, weight, y, y_dtype, weight.columns(), x,
                                       x_.dtype, weight.k(), rows);
    prepare(pool, linear);
    multiply(pool, linear);
  }

  const Kernels& kernels_;
  Experts gate_up_, down_;
  Matrix y_, x_;
  const int64_t* experts_;  // [rows, top_k]
  Matrix weights_;          // float [rows, top_k]
};

}  // namespace

void bind_moe_ops(nb::module_& m) {
  def_op<Route, uintptr_t, const Matrix&, const Matrix&, bool, bool>(m, "route");
  def_op<Moe, const Moe::Experts&, const Moe::Experts&, const Matrix&, const Matrix&, uintptr_t,
         const Matrix&>(m, "moe");
}

}  // namespace quire
