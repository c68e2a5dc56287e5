// Recurrent layers: causal convolution, gated delta rule, Mamba-2.
#include <algorithm>
#include <atomic>
#include <string>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>

#include "../bind.h"
#include "../cpu/kernels.h"
#include "../cpu/op.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

// A step's sequences and the number of slots that states have.
struct States {
  StateSteps steps;
  int64_t slots;
};

// What the three ops share: rows, state slots, and the cost of states.
class StateOp : public Op {
 public:
  int64_t& rows() override { return rows_; }
  std::vector<IndexCheck> indices() const override { return {{"state slot", steps_.to, slots_, -1}}; }
  void set_inputs(const std::vector<StepInput>& inputs) override {
    steps_.num = std::find_if(inputs.begin(), inputs.end(), [&](const StepInput& input) {
                   return input.at == steps_.from;
                 })->rows;
  }
  int64_t bytes() const override {
    int64_t states = rows_ - std::count(steps_.to, steps_.to + rows_, -1);
    for (int64_t s = 0; s < steps_.num; ++s) {
      const bool reads = steps_.query_start_loc[s] < steps_.query_start_loc[s + 1];
      states += reads && steps_.from[s] >= 0;
    }
    return states * state_bytes_ + rows_ * row_bytes_;
  }

 protected:
  StateOp(int64_t rows, const States& states, int64_t state_floats, int64_t row_bytes)
      : steps_(states.steps), rows_(rows), slots_(states.slots), state_bytes_(4 * state_floats),
        row_bytes_(row_bytes) {}

  void check_sources() const {
    for (int64_t s = 0; s < steps_.num; ++s) {
      if (steps_.from[s] >= -1 && steps_.from[s] < slots_) continue;
      throw std::out_of_range("state slot " + std::to_string(steps_.from[s]) + " of sequence " +
                              std::to_string(s) + " is not in [-1, " + std::to_string(slots_) + ")");
    }
  }

  StateSteps steps_;
  int64_t rows_, slots_, state_bytes_, row_bytes_;
};

// Parts of a sequence's state, so that threads have tasks enough: at most `units` of equal size.
int64_t units_a_part(int64_t units, int64_t others, int threads) {
  const int64_t wanted = 2 * threads / std::max<int64_t>(1, others);
  const int64_t parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, units));
  return (units + parts - 1) / parts;
}

std::invalid_argument misfit(const char* name, const Matrix& x, const std::string& wanted) {
  return std::invalid_argument(std::string(name) + " is " + describe(x) + "; wanted " + wanted);
}

// `parameter` [size] of floats, at any address.
const float* floats(const char* name, const Matrix& m, int64_t size) {
  if (m.dtype != kFloat32 || m.rows * m.cols != size) {
    throw misfit(name, m, "float32 [" + std::to_string(size) + "]");
  }
  return static_cast<const float*>(m.at);
}

// `x` must have y's rows and dtype, and `wanted` columns.
void expect_columns(const char* name, const Matrix& x, int64_t wanted, const Matrix& y) {
  if (x.rows == y.rows && x.dtype == y.dtype && x.cols == wanted) return;
  throw misfit(name, x, std::to_string(y.rows) + " rows of " + std::to_string(wanted) +
                            " columns, of the result's dtype");
}

struct CausalConv final : StateOp {
  CausalConv(const Kernels& kernels, const Matrix& y, const Matrix& x, const Matrix& weight,
             uintptr_t bias, uintptr_t state, const States& states, int kind)
      : StateOp(y.rows, states, (weight.rows - 1) * weight.cols,
                y.row_bytes() + x.row_bytes()),
        kernel_(kernels.recurrent.causal_conv1d[x.dtype]),
        args_{y.at, x.at, floats("weight", weight, weight.rows * weight.cols),
              pointer<const float>(bias), pointer<float>(state), y.stride, x.stride, weight.cols,
              weight.rows, kind, {}, 1, 0} {
    if (kind < 0 || kind >= kConvKindCount || weight.rows < 1 || weight.rows > kMostConvWidth) {
      throw misfit("weight", weight, "1 to 16 rows, and a known kind of convolution");
    }
    if (y.cols != weight.cols) throw misfit("y", y, "as many columns as the weight");
    expect_columns("x", x, kind == kConvGated ? 3 * y.cols : y.cols, y);
  }
  const char* name() const override { return "causal_conv1d"; }
  std::vector<Operand> operands() override {
    return operands_at(args_.y, args_.x, steps_.query_start_loc, steps_.from, steps_.to);
  }
  int64_t flops() const override { return 2 * rows_ * args_.channels * args_.width; }

  void run(Pool& pool) override {
    check_sources();
    args_.steps = steps_;
    constexpr int64_t kChannels = 64;  // at least so many in a task
    const int64_t units = (args_.channels + kChannels - 1) / kChannels;
    // One short sequence is less work than waking a thread.
    const bool serial = rows_ * row_bytes_ < kSerialBytes;
    const int64_t unit = serial ? units : units_a_part(units, steps_.num, pool.threads());
    args_.part_channels = unit * kChannels;
    args_.parts = (units + unit - 1) / unit;
    run_tasks(pool, steps_.num * args_.parts, [&](int64_t task) { kernel_(args_, task); });
  }

 private:
  static constexpr int64_t kSerialBytes = 32 << 10;
  void (*kernel_)(const ConvArgs&, int64_t task);
  ConvArgs args_;
};

struct MatrixState : StateOp {
  std::vector<Operand> operands() override {
    std::vector<Operand> all = operands_at(args_.y, args_.x, args_.decay, steps_.query_start_loc,
                                           steps_.from, steps_.to);
    if (args_.beta != nullptr) all.push_back(Operand{&args_.beta});
    return all;
  }

  // Each of as many jobs as threads has a room of the memory, and a share of consecutive tasks, so that it
  // reads one stream of states. Then it takes tasks from others' shares.
  void run(Pool& pool) override {
    check_sources();
    args_.steps = steps_;
    const int64_t blocks = (args_.columns + kStateColumns - 1) / kStateColumns;
    const int64_t unit = units_a_part(blocks, steps_.num * args_.heads, pool.threads());
    args_.part_columns = unit * kStateColumns;
    args_.parts = (blocks + unit - 1) / unit;
    const int64_t tasks = steps_.num * args_.heads * args_.parts, room = state_room_floats(args_);
    const int64_t jobs = std::min<int64_t>(tasks, pool.threads());
    float* const rooms =
        static_cast<float*>(pool.scratch(jobs * room * static_cast<int64_t>(sizeof(float))));
    std::vector<std::atomic<int64_t>> next(static_cast<size_t>(jobs));
    for (int64_t job = 0; job < jobs; ++job) next[static_cast<size_t>(job)] = tasks * job / jobs;
    run_tasks(pool, jobs, [&](int64_t job) {
      for (int64_t i = job; i < job + jobs; ++i) {
        const int64_t share = i % jobs, end = tasks * (share + 1) / jobs;
        std::atomic<int64_t>& first = next[static_cast<size_t>(share)];
        for (int64_t task; (task = first.fetch_add(1, std::memory_order_relaxed)) < end;) {
          kernel_(args_, task, rooms + job * room);
        }
      }
    });
  }

 protected:
  using Kernel = void (*)(const MatrixStateArgs&, int64_t task, float* room);

  MatrixState(Kernel kernel, const MatrixStateArgs& args, int64_t rows, const States& states,
              int64_t row_bytes)
      : StateOp(rows, states, args.heads * args.rows * args.columns, row_bytes), kernel_(kernel),
        args_(args) {
    if (args.heads < 1 || args.groups < 1 || args.heads % args.groups != 0) {
      throw std::invalid_argument(std::to_string(args.heads) + " heads are no multiple of " +
                                  std::to_string(args.groups) + " key heads or groups");
    }
  }
  int64_t elements() const { return rows_ * args_.heads * args_.rows * args_.columns; }

  Kernel kernel_;
  MatrixStateArgs args_;
};

// heads, rows and columns of a state; key heads or groups.
using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t>;

struct GatedDeltaRule final : MatrixState {
  GatedDeltaRule(const Kernels& kernels, const Matrix& y, const Matrix& qkv, const Matrix& decay,
                 const Matrix& beta, const Matrix& rate, const Matrix& bias, uintptr_t state,
                 const States& states, const Shape& shape)
      : MatrixState(kernels.recurrent.gated_delta_rule[y.dtype],
                    args(y, qkv, decay, beta, rate, bias, state, shape), y.rows,
                    states, y.row_bytes() + qkv.row_bytes()) {}
  const char* name() const override { return "gated_delta_rule"; }
  int64_t flops() const override { return 7 * elements(); }

 private:
  static MatrixStateArgs args(const Matrix& y, const Matrix& qkv, const Matrix& decay,
                              const Matrix& beta, const Matrix& rate, const Matrix& bias,
                              uintptr_t state, const Shape& shape) {
    const auto [heads, rows, columns, groups] = shape;
    expect_columns("y", y, heads * columns, y);
    expect_columns("qkv", qkv, 2 * groups * rows + heads * columns, y);
    const bool row_decays = bias.cols != heads;
    const int64_t decays = row_decays ? heads * rows : heads;
    expect_columns("decay", decay, decays, y);
    expect_columns("beta", beta, heads, y);
    return {y.at, qkv.at, decay.at, beta.at, floats("rate", rate, heads), floats("bias", bias, decays),
            nullptr, pointer<float>(state), y.stride, qkv.stride, decay.stride, beta.stride, heads,
            groups, rows, columns, row_decays, 0.0f, 0.0f, {}, 1, 0};
  }
};

struct Mamba2Scan final : MatrixState {
  Mamba2Scan(const Kernels& kernels, const Matrix& y, const Matrix& xbc, const Matrix& dt,
             const Matrix& rate, const Matrix& skip, const Matrix& bias, uintptr_t state,
             const States& states, const Shape& shape, double low, double high)
      : MatrixState(kernels.recurrent.mamba2_scan[y.dtype],
                    args(y, xbc, dt, rate, skip, bias, state, shape, low, high), y.rows,
                    states, y.row_bytes() + xbc.row_bytes()) {}
  const char* name() const override { return "mamba2_scan"; }
  int64_t flops() const override { return 5 * elements(); }

 private:
  static MatrixStateArgs args(const Matrix& y, const Matrix& xbc, const Matrix& dt,
                              const Matrix& rate, const Matrix& skip, const Matrix& bias,
                              uintptr_t state, const Shape& shape, double low, double high) {
    const auto [heads, rows, columns, groups] = shape;
    expect_columns("y", y, heads * columns, y);
    expect_columns("xbc", xbc, 2 * groups * rows + heads * columns, y);
    expect_columns("dt", dt, heads, y);
    return {y.at, xbc.at, dt.at, nullptr, floats("rate", rate, heads), floats("bias", bias, heads),
            floats("skip", skip, heads), pointer<float>(state), y.stride, xbc.stride, dt.stride, 0,
            heads, groups, rows, columns, false, static_cast<float>(low), static_cast<float>(high),
            {}, 1, 0};
  }
};

}  // namespace

void bind_recurrent_op(nb::module_& m) {
  nb::class_<States>(m, "States")
      .def("__init__", [](States* self, uintptr_t query_start_loc, uintptr_t state_from,
                          uintptr_t state_to, int64_t sequences, int64_t slots) {
        new (self) States{{pointer<int32_t>(query_start_loc), pointer<int32_t>(state_from),
                           pointer<int64_t>(state_to), sequences},
                          slots};
      });
  def_op<CausalConv, const Matrix&, const Matrix&, const Matrix&, uintptr_t, uintptr_t, const States&,
         int>(m, "causal_conv1d");
  def_op<GatedDeltaRule, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Matrix&,
         const Matrix&, uintptr_t, const States&, const Shape&>(m, "gated_delta_rule");
  def_op<Mamba2Scan, const Matrix&, const Matrix&, const Matrix&, const Matrix&, const Matrix&,
         const Matrix&, uintptr_t, const States&, const Shape&, double, double>(m, "mamba2_scan");
}

}  // namespace quire
