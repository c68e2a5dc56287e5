// The feed-forward layers of a mixture of experts.
#include <string.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "../bind.h"
#include "../cpu/kernels.h"
#include "../cpu/op.h"
#include "../cpu/row_blocks.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

constexpr int64_t kItemBytes = 256 << 10;  // of weights that a task reads; 64 KiB are a tenth slower
constexpr int64_t kThreadItems = 8;       // tasks per thread at least, if there are as many blocks

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Hands out aligned pieces of memory. Without memory it only counts them.
class Pieces {
 public:
  explicit Pieces(void* memory) : at_(static_cast<uint8_t*>(memory)) {}
  template <class T = uint8_t>
  T* take(int64_t count) {
    T* const piece = at_ == nullptr ? nullptr : reinterpret_cast<T*>(at_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* at_;
  int64_t used_ = 0;
};

// gate_up or down of all experts. The blocks of those that are used form one list, in the order of
// the experts, which the threads get in shares: each reads one stream of memory.
struct Product {
  const PackedWeight& weight;
  const Gemm& gemm;
  int64_t item_blocks = 1, items = 1;  // of each expert

  Product(const Kernels& kernels, const PackedWeight& w)
      : weight(w), gemm(*kernels.gemm[w.kind()]) {}

  void cut(int64_t experts, int64_t threads) {
    const int64_t fair = weight.blocks() * experts / (threads * kThreadItems);
    item_blocks = std::clamp<int64_t>(kItemBytes / weight.block_bytes(), 1, std::max<int64_t>(fair, 1));
    items = ceil_div(weight.blocks(), item_blocks);
  }

  // An expert's product without its addresses. Its own rows choose the kernel.
  GemmArgs start(int64_t expert, int64_t rows, DType x_dtype, DType y_dtype) const {
    GemmArgs args = weight.args(expert, 0, weight.blocks());
    args.rows = rows;
    args.x_dtype = x_dtype;
    args.x_stride = args.k;
    args.y_dtype = y_dtype;
    args.y_stride = args.columns;
    args.threads = 1;  // of an item
    args.tuning = weight.tuning(rows);
    args.tuning.thread_tasks = 1;
    return args;
  }

  // Computes one item of an expert's product.
  void multiply(const GemmArgs& whole, int64_t expert, int64_t item) const {
    const int64_t from = item * item_blocks, to = std::min(from + item_blocks, weight.blocks());
    const int64_t block_columns = is_gated(whole.epilogue) ? kBlockRows / 2 : kBlockRows;
    const GemmArgs part = weight.args(expert, from, to);
    GemmArgs args = whole;
    args.y = static_cast<uint8_t*>(whole.y) + from * block_columns * item_bytes(whole.y_dtype);
    args.n = part.n;
    args.columns = part.columns;
    args.weight = part.weight;
    args.scale = part.scale;
    args.row_sum = part.row_sum;
    args.bias = part.bias;
    const int64_t tasks = gemm.tasks(args);
    for (int64_t task = 0; task < tasks; ++task) gemm.task(args, task);
  }

  void prepare(const GemmArgs& whole) const {
    const int64_t tasks = gemm.prepare_tasks(whole);
    for (int64_t task = 0; task < tasks; ++task) gemm.prepare(whole, task);
  }
};

// y[r] = the sum over row r's experts of weight · down(gate_up(x[r])), in the order of its choice.
//
// A place is a row with one of its experts. Places are sorted by expert, and each expert that has
// one is read once. A row's results are added in its own order, so that no row depends on others.
//
//     x ──> places of x, made ready │ gate_up, h made ready │ down ──> z │ mix ──> y
//
// Each part is at most one parallel region: four in all, two of them inline for few rows.
struct Moe final : Op {
  Moe(const Kernels& kernels, const PackedWeight& gate_up, const PackedWeight& down,
      const Matrix& y, const Matrix& x, uintptr_t experts, const Matrix& weights,
      bool weight_on_input)
      : kernels_(kernels), gate_up_(kernels, gate_up), down_(kernels, down), y_(y), x_(x),
        experts_(pointer<const int64_t>(experts)), weights_(weights),
        weight_on_input_(weight_on_input), first_(static_cast<size_t>(gate_up.experts() + 1)),
        next_(first_.size()) {
    const bool fits = gate_up.experts() == down.experts() && gate_up.k() == x.cols &&
                      gate_up.columns() == down.k() && down.columns() == x.cols &&
                      !is_gated(down.shape().epilogue);
    if (!fits) {
      throw std::invalid_argument("gate_up is " + describe(gate_up) + " and down is " +
                                  describe(down) + ", but x is " + quire::describe(x));
    }
    expect(y.rows == x.rows && y.cols == x.cols && y.stride == x.cols && x.stride == x.cols, "y", y,
           "x", x);
    const bool chosen = weights.rows == x.rows && weights.stride == weights.cols;
    expect(chosen && weights.dtype == kFloat32, "weights", weights, "x", x);
    uses_.reserve(first_.size());
  }
  const char* name() const override { return "moe"; }
  int64_t& rows() override { return x_.rows; }
  std::vector<Operand> operands() override {
    return operands_at(y_.at, x_.at, experts_, weights_.at);
  }
  void tally(std::vector<int64_t>& total) const override {
    const size_t experts = first_.size() - 1;
    if (experts < 2) return;  // one that every row has
    total.resize(experts + 1);
    for (int64_t i = 0; i < places(); ++i) ++total[static_cast<size_t>(experts_[i])];
    total[experts] += used();
  }
  int64_t bytes() const override {
    const int64_t experts = gate_up_.weight.experts();
    return x_.rows * (x_.row_bytes() + y_.row_bytes()) + 12 * places() +
           used() * ((gate_up_.weight.nbytes() + down_.weight.nbytes()) / experts);
  }
  int64_t flops() const override {
    const int64_t experts = gate_up_.weight.experts();
    return 2 * places() * (gate_up_.weight.n() / experts + width()) * x_.cols;
  }

  void run(Pool& pool) override {
    if (x_.rows == 0) return;
    sort_places();
    gate_up_.weight.use();
    down_.weight.use();
    const auto used = static_cast<int64_t>(uses_.size());
    gate_up_.cut(used, pool.threads());
    down_.cut(used, pool.threads());
    Pieces count(nullptr);
    take(count);
    Pieces memory(pool.scratch(count.used()));
    take(memory);
    connect();

    make_ready(pool);
    run_in_shares(pool, used * gate_up_.items, [this](int64_t item) {
      Use& use = uses_[static_cast<size_t>(item / gate_up_.items)];
      gate_up_.multiply(use.up, use.expert, item % gate_up_.items);
      const std::atomic_ref<int64_t> left(use.left);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) down_.prepare(use.down);
    });
    run_in_shares(pool, used * down_.items, [this](int64_t item) {
      const Use& use = uses_[static_cast<size_t>(item / down_.items)];
      down_.multiply(use.down, use.expert, item % down_.items);
    });
    const float* const weights = weight_on_input_ ? ones_ : static_cast<const float*>(weights_.at);
    const MixArgs mix = {y_.at, z_, place_, weights, top_k(), x_.cols};
    each_row(pool, top_k() * x_.cols * 4, [&](int64_t row) { kernels_.mix[y_.dtype](mix, row); });
  }

 private:
  // An expert that has places, from `first` on.
  struct Use {
    int64_t expert, first;
    int64_t left;  // items of gate_up
    GemmArgs up, down;
  };

  static std::string describe(const PackedWeight& w) {
    const int64_t n = w.n() / w.experts();
    return std::to_string(w.experts()) + " x [" + std::to_string(n) + ", " + std::to_string(w.k()) + "]";
  }
  // Experts that have rows.
  int64_t used() const {
    std::vector<bool> seen(first_.size() - 1, false);
    for (int64_t i = 0; i < places(); ++i) seen[static_cast<size_t>(experts_[i])] = true;
    return std::count(seen.begin(), seen.end(), true);
  }
  int64_t width() const { return down_.weight.k(); }
  int64_t top_k() const { return weights_.cols; }
  int64_t places() const { return x_.rows * top_k(); }
  // All experts read the one row, each once.
  bool shares_x() const {
    return x_.rows == 1 && !weight_on_input_ && static_cast<int64_t>(uses_.size()) == places();
  }

  // Finds the experts in use, and where their places begin. Throws std::out_of_range for others.
  void sort_places() {
    const auto count = static_cast<int64_t>(first_.size()) - 1;
    const auto [least, most] = std::minmax_element(experts_, experts_ + places());
    if (*least < 0 || *most >= count) {
      throw std::out_of_range("experts " + std::to_string(*least) + " to " +
                              std::to_string(*most) + " of " + std::to_string(count));
    }
    std::fill(first_.begin(), first_.end(), 0);
    for (int64_t i = 0; i < places(); ++i) ++first_[static_cast<size_t>(experts_[i]) + 1];
    uses_.clear();
    for (size_t e = 1; e < first_.size(); ++e) {
      const int64_t rows = first_[e];
      first_[e] += first_[e - 1];
      if (rows == 0) continue;
      const auto expert = static_cast<int64_t>(e) - 1;
      uses_.push_back({expert, first_[e - 1], 0, gate_up_.start(expert, rows, x_.dtype, x_.dtype),
                       down_.start(expert, rows, x_.dtype, kFloat32)});
    }
  }

  // Takes memory for all intermediate results.
  void take(Pieces& memory) {
    place_ = memory.take<int64_t>(places());
    source_ = memory.take<int64_t>(places());
    ones_ = memory.take<float>(weight_on_input_ ? places() : 0);
    gathered_ = memory.take(shares_x() ? 0 : places() * x_.row_bytes());
    h_ = memory.take(places() * width() * item_bytes(x_.dtype));
    z_ = memory.take<float>(places() * x_.cols);
    for (Use& use : uses_) {
      const bool shared = shares_x() && &use != &uses_.front();
      use.up.scratch = shared ? uses_.front().up.scratch
                              : memory.take(gate_up_.gemm.scratch_bytes(use.up));
      use.down.scratch = memory.take(down_.gemm.scratch_bytes(use.down));
    }
  }

  // Sets what the products read and write.
  void connect() {
    if (shares_x()) gathered_ = static_cast<uint8_t*>(x_.at);
    for (Use& use : uses_) {
      use.left = gate_up_.items;
      use.up.x = gathered_ + (shares_x() ? 0 : use.first * x_.row_bytes());
      use.up.y = h_ + use.first * width() * item_bytes(x_.dtype);
      use.down.x = use.up.y;
      use.down.y = z_ + use.first * x_.cols;
    }
  }

  // Makes each expert's rows ready for its product: kPrepareRows of them a task.
  void make_ready(Pool& pool) {
    std::copy(first_.begin(), first_.end(), next_.begin());
    for (int64_t i = 0; i < places(); ++i) {
      place_[i] = next_[static_cast<size_t>(experts_[i])]++;
      source_[place_[i]] = i;
    }
    if (weight_on_input_) std::fill(ones_, ones_ + places(), 1.0f);
    if (shares_x()) return gate_up_.prepare(uses_.front().up);
    int64_t tasks = 0;
    for (size_t u = 0; u < uses_.size(); ++u) {
      next_[u] = tasks;
      tasks += ceil_div(uses_[u].up.rows, kPrepareRows);
    }
    const auto end = next_.begin() + static_cast<int64_t>(uses_.size());
    run_tasks(pool, tasks, [&](int64_t task) {
      const auto at = std::upper_bound(next_.begin(), end, task) - 1;
      make_ready(uses_[static_cast<size_t>(at - next_.begin())], task - *at);
    });
  }

  void make_ready(const Use& use, int64_t task) const {
    const int64_t row_bytes = x_.row_bytes(), end = std::min(use.up.rows, (task + 1) * kPrepareRows);
    for (int64_t r = task * kPrepareRows; r < end; ++r) {
      const int64_t place = use.first + r, i = source_[place];
      const uint8_t* const from = static_cast<const uint8_t*>(x_.at) + i / top_k() * row_bytes;
      uint8_t* const to = gathered_ + place * row_bytes;
      if (weight_on_input_) {
        const float weight = static_cast<const float*>(weights_.at)[i];
        kernels_.fused.scale[x_.dtype]({to, from, 1, x_.cols, x_.cols, x_.cols, weight, 0.0f, 0.0f, 1}, 0);
      } else {
        memcpy(to, from, static_cast<size_t>(row_bytes));
      }
    }
    if (gate_up_.gemm.prepare_tasks(use.up) > 0) gate_up_.gemm.prepare(use.up, task);
  }

  template <class Body>
  static void run_in_shares(Pool& pool, int64_t tasks, const Body& body) {
    pool.run(
        tasks, [](void* b, int64_t task) { (*static_cast<const Body*>(b))(task); },
        const_cast<Body*>(&body), Deal::kShares);
  }

  template <class Body>
  void each_row(Pool& pool, int64_t row_bytes, const Body& body) const {
    const int64_t rows = x_.rows, task_rows = rows_a_task(rows, row_bytes);
    run_tasks(pool, row_tasks(rows, task_rows), [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * task_rows);
      for (int64_t row = task * task_rows; row < end; ++row) body(row);
    });
  }

  const Kernels& kernels_;
  Product gate_up_, down_;
  Matrix y_, x_;
  const int64_t* experts_;  // [rows, top_k]
  Matrix weights_;          // float [rows, top_k]
  bool weight_on_input_;
  // Of a run; the vectors are as large as they ever get.
  std::vector<int64_t> first_, next_;  // [experts + 1]: where an expert's places begin
  std::vector<Use> uses_;              // in the order of experts
  int64_t *place_ = nullptr, *source_ = nullptr;  // [rows, top_k] → place, and back
  uint8_t *gathered_ = nullptr, *h_ = nullptr;    // [places, hidden], [places, width]
  float *z_ = nullptr, *ones_ = nullptr;          // [places, hidden], [places]
};

}  // namespace

void bind_moe_op(nb::module_& m) {
  def_op<Moe, const PackedWeight&, const PackedWeight&, const Matrix&, const Matrix&, uintptr_t,
         const Matrix&, bool>(m, "moe");
}

}  // namespace quire
