// The router of a mixture of experts: which experts a row takes, and with which weights.
#include <nanobind/stl/tuple.h>

#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "../bind.h"
#include "../cpu/op.h"
#include "../cpu/row_blocks.h"
#include "../cpu/scalar.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

// As RouteSpec of core/layers.py: sigmoid, renormalize, epsilon, least, num_groups, top_groups, top2,
// scale, band.
using Spec = std::tuple<bool, bool, double, double, int64_t, int64_t, bool, double, double>;

struct Candidate {
  float score;
  int64_t index;
};

// Brings the `k` best of n candidates to the front, in order. Equal ones end as in torch.topk on a
// CPU, which picks between these two algorithms of the standard library by the same rule.
void take_best(Candidate* all, int64_t n, int64_t k) {
  const auto above = [](const Candidate& a, const Candidate& b) {
    return (std::isnan(a.score) && !std::isnan(b.score)) || a.score > b.score;
  };
  if (k * 64 <= n) return std::partial_sort(all, all + k, all + n, above);
  std::nth_element(all, all + k - 1, all + n, above);
  std::sort(all, all + k - 1, above);
}

struct Route final : Op {
  Route(const Kernels&, uintptr_t experts, const Matrix& weights, const Matrix& logits,
        uintptr_t bias, uintptr_t factors, const Spec& spec)
      : experts_(pointer<int64_t>(experts)), weights_(weights), logits_(logits),
        bias_(pointer<const float>(bias)), factors_(pointer<const float>(factors)) {
    std::tie(sigmoid_, renormalize_, epsilon_, least_, groups_, top_groups_, top2_, scale_, band_) =
        spec;
    const int64_t least = groups_ > 1 && top2_ ? 2 : 1;
    const bool fits = groups_ >= 1 && top_groups_ >= 1 && top_groups_ <= groups_ &&
                      logits.cols % groups_ == 0 && logits.cols / groups_ >= least &&
                      weights.cols >= 1 && weights.cols <= logits.cols / groups_ * top_groups_ &&
                      logits.rows == weights.rows && weights.dtype == kFloat32;
    expect(fits && weights.stride == weights.cols, "weights", weights, "logits", logits);
    by_scores_ = bias_ != nullptr || (groups_ > 1 && top2_);
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
    const int64_t tasks = row_tasks(rows, task_rows);
    const int64_t n = logits_.cols;
    const int64_t task_bytes = ((2 * n + 1) * 16 + n * 12 + 63) / 64 * 64;
    uint8_t* const scratch = static_cast<uint8_t*>(pool.scratch(tasks * task_bytes));
    run_tasks(pool, tasks, [&](int64_t task) {
      Candidate* const best = reinterpret_cast<Candidate*>(scratch + task * task_bytes);
      double* const scores = reinterpret_cast<double*>(best + 2 * n + 1);
      const Work work = {best, best + n, scores, reinterpret_cast<float*>(scores + n)};
      const int64_t end = std::min(rows, (task + 1) * task_rows);
      for (int64_t row = task * task_rows; row < end; ++row) route(row, work);
    });
  }

 private:
  struct Work {
    Candidate* best;    // [experts]
    Candidate* groups;  // [groups], and behind them the experts of one
    double* scores;     // [experts], as logits
    float* logits;
  };

  void route(int64_t row, const Work& work) const {
    const int64_t n = logits_.cols, k = weights_.cols;
    read_logits(row, work.logits);
    if (band_ > 0.0) return route_one_by_one(row, work);
    double total = 1.0;
    const float peak = *std::max_element(work.logits, work.logits + n);
    const auto score = [&](int64_t e) {
      const double x = static_cast<double>(work.logits[e]);
      return sigmoid_ ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x - static_cast<double>(peak));
    };
    // Renormalized weights of a softmax need no sum over all experts, if nothing else counts.
    if (!sigmoid_ && (by_scores_ || !renormalize_ || epsilon_ != 0.0 || least_ != 0.0)) {
      total = 0.0;
      for (int64_t e = 0; e < n; ++e) total += work.scores[e] = score(e);
    } else if (by_scores_) {
      for (int64_t e = 0; e < n; ++e) work.scores[e] = score(e);
    }
    for (int64_t e = 0; e < n; ++e) {
      float value = work.logits[e];
      if (by_scores_) {
        value = static_cast<float>(work.scores[e] / total);
        if (bias_ != nullptr) value += bias_[e];
      }
      work.best[e] = {value, e};
    }
    if (groups_ > 1) drop_groups(work);
    take_best(work.best, n, k);

    float* const weights = static_cast<float*>(weights_.at) + row * k;
    double sum = 0.0;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = work.best[i].index;
      experts_[row * k + i] = e;
      work.scores[i] = score(e) / total;
      sum += work.scores[i];
    }
    // NaN stays NaN.
    const double whole = sum + epsilon_;
    const double divisor = !renormalize_ ? 1.0 : whole < least_ ? least_ : whole;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = work.best[i].index;
      const double factor = factors_ == nullptr ? scale_ : scale_ * static_cast<double>(factors_[e]);
      weights[i] = static_cast<float>(work.scores[i] / divisor * factor);
    }
  }

  // Chooses the best of the experts that are left, k times. Its weight is a softmax of those that
  // are left and within the band: relative to the larger of the best and their own size.
  void route_one_by_one(int64_t row, const Work& work) const {
    const int64_t n = logits_.cols, k = weights_.cols;
    float* const left = work.logits;
    for (int64_t i = 0; i < k; ++i) {
      int64_t best = 0;
      for (int64_t e = 1; e < n && !std::isnan(left[best]); ++e) {
        if (std::isnan(left[e]) || left[e] > left[best]) best = e;
      }
      const float top = left[best];
      double total = 0.0;
      for (int64_t e = 0; e < n; ++e) {
        const float size = std::max(std::abs(left[e]), top);
        if (taken(row, i, e) || (top - left[e]) / size > static_cast<float>(band_)) continue;
        total += std::exp(static_cast<double>(left[e]) - static_cast<double>(top));
      }
      experts_[row * k + i] = best;
      static_cast<float*>(weights_.at)[row * k + i] = static_cast<float>(scale_ / total);
      left[best] = -std::numeric_limits<float>::infinity();
    }
  }
  // Whether expert e is among the first i choices of the row.
  bool taken(int64_t row, int64_t i, int64_t e) const {
    const int64_t* const chosen = experts_ + row * weights_.cols;
    return std::find(chosen, chosen + i, e) != chosen + i;
  }

  void read_logits(int64_t row, float* to) const {
    const int64_t n = logits_.cols;
    const uint8_t* const from = static_cast<const uint8_t*>(logits_.at) +
                                row * logits_.stride * item_bytes(logits_.dtype);
    if (logits_.dtype == kFloat32) {
      memcpy(to, from, static_cast<size_t>(4 * n));
    } else if (logits_.dtype == kFloat16) {
      for (int64_t e = 0; e < n; ++e) to[e] = to_float(reinterpret_cast<const f16*>(from)[e]);
    } else {
      for (int64_t e = 0; e < n; ++e) to[e] = to_float(reinterpret_cast<const bf16*>(from)[e]);
    }
  }

  // Takes experts outside of the best groups out of the choice.
  void drop_groups(const Work& work) const {
    const int64_t size = logits_.cols / groups_;
    for (int64_t g = 0; g < groups_; ++g) {
      Candidate* const own = work.groups + groups_;
      std::copy(work.best + g * size, work.best + (g + 1) * size, own);
      take_best(own, size, top2_ ? 2 : 1);
      work.groups[g] = {top2_ ? own[0].score + own[1].score : own[0].score, g};
    }
    take_best(work.groups, groups_, top_groups_);
    for (int64_t i = top_groups_; i < groups_; ++i) {
      Candidate* const other = work.best + work.groups[i].index * size;
      for (int64_t e = 0; e < size; ++e) other[e].score = -std::numeric_limits<float>::infinity();
    }
  }

  int64_t* experts_;  // [rows, top_k]
  Matrix weights_, logits_;
  const float *bias_, *factors_;  // [experts], or null
  bool sigmoid_ = false, renormalize_ = false, top2_ = false;
  bool by_scores_;  // what decides; else logits do
  int64_t groups_ = 1, top_groups_ = 1;
  double epsilon_ = 0.0, least_ = 0.0, scale_ = 1.0, band_ = 0.0;  // band 0 is none
};

}  // namespace

void bind_route_op(nb::module_& m) {
  def_op<Route, uintptr_t, const Matrix&, const Matrix&, uintptr_t, uintptr_t, const Spec&>(m, "route");
}

}  // namespace quire
