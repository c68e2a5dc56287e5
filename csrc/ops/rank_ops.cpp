// Rows of embedding tables, and what a group of ranks computes together (rank_group.h).
#include <nanobind/stl/tuple.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "../bind.h"
#include "../cpu/rank_group.h"
#include "../cpu/row_blocks.h"
#include "../cpu/row_op.h"
#include "../cpu/scalar.h"
#include "../submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

constexpr int64_t kScatteredBytes = 16;  // read for a byte of a packed row: 4 of every 64

// y = rows `ids` of a table of `vocab` rows, of which this rank has `count` from `first` on: in
// `weight`, as packed for linear layers, or where that is null, in `table`. Without a group it has
// all.
struct Embedding final : Op {
  Embedding(RankGroup* group, const Matrix& y, const Indices& ids, const Matrix* table,
            const PackedWeight* weight, int64_t first, int64_t vocab)
      : group_(group), weight_(weight), table_(table == nullptr ? Matrix{} : *table), y_(y),
        ids_(ids.at), first_(first), count_(table == nullptr ? weight->n() : table->rows),
        vocab_(group == nullptr ? count_ : vocab) {
    expect(ids.size == y.rows, "ids", ids, "y", y);
    if (table != nullptr) expect(table->cols == y.cols && table->dtype == y.dtype, "y", y, "table", *table);
    if (y.cols != (table == nullptr ? weight->k() : table->cols) || y.stride != y.cols) {
      throw std::invalid_argument("y is " + describe(y) + ", not contiguous rows of the table");
    }
  }
  const char* name() const override { return group_ == nullptr ? "embedding" : "vocab_embedding"; }
  int64_t& rows() override { return y_.rows; }
  std::vector<Operand> operands() override {
    return {{&y_.at}, {&ids_}, {&table_.at, true}};
  }
  std::vector<IndexCheck> indices() const override {
    return {{"token id", ids_, vocab_, 0, table_.at}};
  }
  // A rank reads its rows, writes them to y, from there to the slots; reads all slots, writes y.
  int64_t bytes() const override {
    if (group_ == nullptr) return 2 * y_.rows * y_.row_bytes();
    return y_.rows * y_.row_bytes() * (4 + 2 * group_->ranks()) / group_->ranks();
  }

  void run(Pool& pool) override {
    const int64_t row_bytes = y_.row_bytes(), rows = y_.rows;
    const bool scattered = weight_ != nullptr || group_ != nullptr;
    uint8_t* const y = static_cast<uint8_t*>(y_.at);
    const int64_t task_rows = rows_a_task(rows, (scattered ? kScatteredBytes : 2) * row_bytes);
    run_tasks(pool, row_tasks(rows, task_rows), [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * task_rows);
      for (int64_t row = task * task_rows; row < end; ++row) copy_row(row, y + row * row_bytes);
    });
    if (group_ == nullptr) return;
    group_->gather(pool, y, rows, row_bytes, [&](int64_t row) {
      return RankGroup::Part{0, place(row) < 0 ? 0 : row_bytes, y + row * row_bytes};
    });
  }

 private:
  // Of a row's id among this rank's rows, or -1. Alone a rank has all: a replay's table may have
  // more rows than the recorded one.
  int64_t place(int64_t row) const {
    const int64_t at = ids_[row] - first_;
    if (group_ == nullptr) return at;
    return at < count_ ? std::max<int64_t>(at, -1) : -1;
  }
  void copy_row(int64_t row, uint8_t* to) const {
    const int64_t at = place(row);
    if (at < 0) return;
    if (weight_ != nullptr) return weight_->lookup(&at, 1, y_.dtype, to);
    const int64_t item = item_bytes(y_.dtype);
    memcpy(to, static_cast<const uint8_t*>(table_.at) + at * table_.stride * item,
           static_cast<size_t>(y_.row_bytes()));
  }

  RankGroup* group_;
  const PackedWeight* weight_;
  Matrix table_, y_;
  const int64_t* ids_;
  int64_t first_, count_, vocab_;
};

// y = the sum over the ranks of their float x, both contiguous.
struct AllReduce final : Op {
  AllReduce(const Kernels& kernels, RankGroup& group, const Matrix& y, const Matrix& x)
      : kernels_(kernels), group_(group), y_(y), x_(static_cast<const float*>(x.at)) {
    expect(x.rows == y.rows && x.cols == y.cols && x.dtype == kFloat32, "x", x, "y", y);
  }
  const char* name() const override { return "all_reduce"; }
  int64_t& rows() override { return y_.rows; }
  std::vector<Operand> operands() override { return operands_at(y_.at, x_); }
  void run(Pool& pool) override {
    group_.sum(kernels_, pool, y_.at, y_.dtype, x_, y_.rows * y_.cols);
  }
  int64_t bytes() const override {  // reads x, writes its slot, reads all slots, writes y
    return y_.rows * y_.cols * (4 * (2 + group_.ranks()) + item_bytes(y_.dtype));
  }
  int64_t flops() const override { return y_.rows * y_.cols * (group_.ranks() - 1); }

 private:
  const Kernels& kernels_;
  RankGroup& group_;
  Matrix y_;
  const float* x_;
};

// y [rows, width] from the ranks' x [rows, cols], whose columns are those from `first` on; both
// contiguous.
struct AllGather final : Op {
  AllGather(RankGroup& group, const Matrix& y, const Matrix& x, int64_t first)
      : group_(group), y_(y), x_(x), first_(first) {
    expect(x.rows == y.rows && x.dtype == y.dtype, "x", x, "y", y);
    if (first < 0 || first + x.cols > y.cols) {
      throw std::invalid_argument("columns [" + std::to_string(first) + ", " +
                                  std::to_string(first + x.cols) + ") are not among " +
                                  std::to_string(y.cols));
    }
  }
  const char* name() const override { return "all_gather"; }
  int64_t& rows() override { return y_.rows; }
  std::vector<Operand> operands() override { return operands_at(y_.at, x_.at); }
  void run(Pool& pool) override {
    group_.gather(pool, y_.at, y_.rows, y_.row_bytes(), [&](int64_t row) {
      return RankGroup::Part{first_ * item_bytes(x_.dtype), x_.row_bytes(),
                             static_cast<const uint8_t*>(x_.at) + row * x_.row_bytes()};
    });
  }
  int64_t bytes() const override { return y_.rows * 2 * (x_.row_bytes() + y_.row_bytes()); }

 private:
  RankGroup& group_;
  Matrix y_, x_;
  int64_t first_;
};

// Σ x², in an order that depends only on `cols`.
template <class T>
float square_sum(const T* x, int64_t cols) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= cols; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float v = to_float(x[i + lane]);
      lanes[lane] += v * v;
    }
  }
  for (int64_t lane = 0; i < cols; ++i, ++lane) lanes[lane] += to_float(x[i]) * to_float(x[i]);
  float total = 0.0f;
  for (const float lane : lanes) total += lane;
  return total;
}

inline void round_to(float& to, float v) { to = v; }
inline void round_to(bf16& to, float v) { to = {to_bf16(v)}; }
inline void round_to(f16& to, float v) { to = {to_f16(v)}; }

// x = gain * (x * scale), each product rounded, in place.
template <class T, class W>
void scale_row(T* x, const W* gain, int64_t cols, float scale) {
  for (int64_t i = 0; i < cols; ++i) {
    W scaled;
    round_to(scaled, to_float(x[i]) * scale);
    round_to(x[i], to_float(gain[i]) * to_float(scaled));
  }
}

// RMSNorms over all heads of q and of k, in place, where each rank has some of the heads.
//
// Every rank adds its sums of squares to those of the others, in rank order, so all ranks get the same
// scales. Several ranks may have the same heads of k: one of them counts.
struct RankNorms final : Op {
  // `gain` is this rank's part of the weight, `width` the columns of all ranks.
  struct Part {
    Matrix x, gain;
    int64_t width;
    bool counts;
  };
  RankNorms(const Kernels& kernels, RankGroup& group, const Part& q, const Part& k, float eps)
      : kernels_(kernels), group_(group), parts_{q, k}, eps_(eps) {
    for (const Part& part : parts_) {
      expect_vector("gain", part.gain, part.x.cols, part.x, true);
      expect(part.x.rows == q.x.rows && part.x.dtype == q.x.dtype, "k", part.x, "q", q.x);
    }
  }
  const char* name() const override { return "rank_norms"; }
  int64_t& rows() override { return parts_[0].x.rows; }
  std::vector<Operand> operands() override { return operands_at(parts_[0].x.at, parts_[1].x.at); }
  int64_t bytes() const override {
    return parts_[0].x.rows * 3 * (parts_[0].x.row_bytes() + parts_[1].x.row_bytes());
  }
  int64_t flops() const override {
    return 4 * parts_[0].x.rows * (parts_[0].x.cols + parts_[1].x.cols);
  }

  void run(Pool& pool) override {
    switch (parts_[0].x.dtype) {
      case kBFloat16: return run_as<bf16>(pool);
      case kFloat16: return run_as<f16>(pool);
      default: return run_as<float>(pool);
    }
  }

 private:
  template <class T>
  static T* row_of(const Matrix& x, int64_t row) {
    return static_cast<T*>(x.at) + row * x.stride;
  }
  template <class Body>
  void each_row(Pool& pool, const Body& body) const {
    const int64_t rows = parts_[0].x.rows;
    const int64_t task_rows = rows_a_task(rows, parts_[0].x.row_bytes() + parts_[1].x.row_bytes());
    run_tasks(pool, row_tasks(rows, task_rows), [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * task_rows);
      for (int64_t row = task * task_rows; row < end; ++row) body(row);
    });
  }
  template <class T>
  void run_as(Pool& pool) {
    const int64_t rows = parts_[0].x.rows;
    float* const own = static_cast<float*>(pool.scratch(4 * rows * 4));
    float* const total = own + 2 * rows;
    each_row(pool, [&](int64_t row) {
      for (int64_t p = 0; p < 2; ++p) {
        const Part& part = parts_[p];
        const T* const x = row_of<T>(part.x, row);
        own[2 * row + p] = part.counts ? square_sum(x, part.x.cols) : 0.0f;
      }
    });
    group_.sum(kernels_, pool, total, kFloat32, own, 2 * rows);
    each_row(pool, [&](int64_t row) {
      for (int64_t p = 0; p < 2; ++p) {
        const Part& part = parts_[p];
        const float mean = total[2 * row + p] / static_cast<float>(part.width);
        const float scale = 1.0f / std::sqrt(mean + eps_);
        T* const x = row_of<T>(part.x, row);
        if (part.gain.dtype == part.x.dtype) {
          scale_row(x, static_cast<const T*>(part.gain.at), part.x.cols, scale);
        } else {
          scale_row(x, static_cast<const float*>(part.gain.at), part.x.cols, scale);
        }
      }
    });
  }

  const Kernels& kernels_;
  RankGroup& group_;
  Part parts_[2];
  float eps_;
};

using NormPart = std::tuple<const Matrix*, const Matrix*, int64_t, bool>;

void rank_norms(const Kernels& kernels, Pool& pool, RankGroup& group, const NormPart& q,
                const NormPart& k, float eps) {
  const auto part = [](const NormPart& given) {
    const auto& [x, gain, width, counts] = given;
    return RankNorms::Part{*x, *gain, width, counts};
  };
  submit(pool, RankNorms(kernels, group, part(q), part(k), eps));
}

void embedding(Pool& pool, RankGroup* group, const Matrix& y, const Indices& ids,
               const Matrix* table, const PackedWeight* weight, int64_t first, int64_t vocab) {
  if ((table == nullptr) == (weight == nullptr)) {
    throw std::invalid_argument("rows come from a table or from a packed weight");
  }
  submit(pool, Embedding(group, y, ids, table, weight, first, vocab));
}

void all_gather(Pool& pool, RankGroup& group, const Matrix& y, const Matrix& x, int64_t first) {
  submit(pool, AllGather(group, y, x, first));
}

}  // namespace

void bind_rank_ops(nb::module_& m) {
  nb::class_<RankGroup>(m, "RankGroup")
      .def("__init__", [](RankGroup* group, uintptr_t memory, int rank,
                          int ranks) { new (group) RankGroup(pointer(memory), rank, ranks); })
      .def("begin", &RankGroup::begin)
      .def("fail", &RankGroup::fail)
      .def("lose", &RankGroup::lose)
      .def("waited", &RankGroup::waited);
  m.def("rank_group_bytes", &RankGroup::bytes);
  m.def("embedding", &embedding, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
        nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg());
  def_op<AllReduce, RankGroup&, const Matrix&, const Matrix&>(m, "all_reduce");
  m.def("all_gather", &all_gather);
  m.def("rank_norms", &rank_norms);
}

}  // namespace quire
