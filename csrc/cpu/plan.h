// A model's step, recorded once and replayed with the rows and inputs of every step.
#pragma once

#include <stdint.h>

#include <memory>
#include <utility>
#include <vector>

#include "op.h"

namespace quire {

// An op's total cost in all steps since counting began.
struct OpCount {
  int64_t calls, nanoseconds, rows, bytes, flops;
};

// An op in one step; `begin` is in nanoseconds of the monotonic clock.
struct OpRun {
  int64_t op, begin, nanoseconds, rows, bytes, flops;
};

// Ops in order, and one arena for their results.
//
// Ops are recorded while the model runs on a single row: `append` gets each op with its arguments. Their
// addresses identify tensors. `add_buffer` and `add_input` define what they are in a replay, and `link`
// translates them. An op or buffer has as many rows as the input that is named with it. A buffer takes
// its bytes per row times that number, so a small step touches little memory. Buffers with the same
// input share a region of the arena:
//
//     region: │ offset 0 · rows        │ offset 1 · rows     │ …
//             │ buffer 0: [rows, cols] │ buffer 1            │
//
// Offsets may overlap if lifetimes do not.
class Plan {
 public:
  explicit Plan(Pool& pool) : pool_(pool) {}
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // From now on the pool's ops are recorded here instead of run, with the rows of this input; -1 ends
  // it. Throws std::invalid_argument if another plan is being recorded.
  void record(int64_t rows_input);
  void append(std::unique_ptr<Op> op) {
    steps_.push_back({std::move(op), rows_input_, 0, false, nullptr, {}});
  }
  int64_t size() const { return static_cast<int64_t>(steps_.size()); }

  // The `bytes` at `recorded` are one row of a buffer at `offset` bytes per row in the region that begins
  // at byte `region` of the arena.
  void add_buffer(const void* recorded, int64_t bytes, int64_t rows_input, int64_t region,
                  int64_t offset);
  // The `bytes` at `recorded` are input `index` of a step.
  void add_input(const void* recorded, int64_t bytes, int64_t index);
  // Places the buffers, of at most `max_rows` rows, in `arena`, which the caller owns and which must
  // outlive this. Throws std::invalid_argument if an op reads or writes memory that was not added.
  void link(void* arena, int64_t max_rows);

  // Sets the inputs of the following steps, and checks all indices in them. If addresses did not change,
  // the cost does not depend on the number of ops.
  // Throws std::out_of_range for an index, std::invalid_argument for more rows than `max_rows`.
  void begin(const std::vector<StepInput>& inputs);
  // Runs the ops [first, last) of the step.
  void run(int64_t first, int64_t last);

  // `next` runs some time after this plan. If a step has few rows, so that it waits for weights, the
  // first weights of `next` are prefetched in between.
  void precede(const Plan& next);

  // Counts and runs leave out ops without rows in a step.
  // Starts counting totals of each op, from zero; off drops them.
  void count(bool on) {
    counts_.assign(on ? steps_.size() : 0, OpCount{});
    tallies_.assign(counts_.size(), {});
  }
  const std::vector<OpCount>& counts() const { return counts_; }
  // Of each op while counting: `Op::tally` of all steps; empty for other ops.
  const std::vector<std::vector<int64_t>>& tallies() const { return tallies_; }
  // Starts recording the first `max_runs` runs of ops; 0 stops and drops them.
  void trace(int64_t max_runs);
  const std::vector<OpRun>& runs() const { return runs_; }

 private:
  // A range of recorded addresses: input `index`, or a buffer if that is -1.
  struct Range {
    uintptr_t begin, end;
    int64_t index;
    int64_t rows_input, region, offset;
  };
  // The target of an op's pointer: `inside` bytes into a row of the range. Constants have none.
  struct Pointer {
    Operand operand;
    const Range* range;
    int64_t inside;
  };
  struct Step {
    std::unique_ptr<Op> op;
    int64_t rows_input;
    int64_t multiple;  // rows of the op per row of that input
    bool feeds_next;   // see `feeds`
    const PackedWeight* ahead;  // next weight that a later op reads, or null
    std::vector<Pointer> pointers;
  };
  struct Check {
    IndexCheck check;
    int64_t input, rows_input;
    int64_t limit_input;  // input whose number of rows is the limit, or -1
  };

  const Range* range_of(const void* recorded) const;
  void add_checks(Step& step);
  void add_pointers(Step& step);
  void check_inputs(const std::vector<StepInput>& inputs) const;
  Op& op(int64_t index) { return *steps_[static_cast<size_t>(index)].op; }
  std::vector<Span> first_reads(int64_t bytes) const;
  void run_step(int64_t index, bool next_too);
  void note(int64_t index, int64_t begin, int64_t nanoseconds);

  Pool& pool_;
  std::vector<Step> steps_;
  std::vector<Range> ranges_;
  std::vector<Check> checks_;
  uint8_t* arena_ = nullptr;
  int64_t max_rows_ = 0;
  int64_t num_inputs_ = 0;
  int64_t rows_input_ = -1;  // rows input of recorded ops
  std::vector<StepInput> inputs_;  // inputs that the ops' pointers have now
  Linear started_{};  // the linear op that the previous op prepared
  std::vector<Span> after_;  // first reads of the next plan
  std::vector<OpCount> counts_;
  std::vector<std::vector<int64_t>> tallies_;
  std::vector<OpRun> runs_;
  size_t max_runs_ = 0;
};

}  // namespace quire
