// A model's step, recorded once and replayed with every step's own rows and inputs.
#pragma once

#include <stdint.h>

#include <memory>
#include <utility>
#include <vector>

#include "op.h"

namespace quire {

// What an op took in all steps since counting began.
struct OpCount {
  int64_t calls, nanoseconds, rows, bytes, flops;
};

// An op in one step; `begin` is in nanoseconds of the monotonic clock.
struct OpRun {
  int64_t op, begin, nanoseconds, rows, bytes, flops;
};

// Ops in their order, and one arena for what they compute.
//
// Ops are recorded while the model runs on a single row: `append` is given each op as it would run
// then. The addresses in it say which tensor is meant; `add_buffer` and `add_input` say what stands
// there in a replay, and `link` translates them. Ops and buffers have as many rows as an input that
// is named with them. A buffer takes its bytes a row times those, so a small step touches little
// memory; buffers with the same input share a region of the arena:
//
//     region: │ offset 0 · rows        │ offset 1 · rows     │ …
//             │ buffer 0: [rows, cols] │ buffer 1            │
//
// Where lifetimes do not overlap, offsets may.
class Plan {
 public:
  explicit Plan(Pool& pool) : pool_(pool) {}
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // From now on the pool's ops come here instead of being run, and have the rows of this input; -1
  // ends that. Throws std::invalid_argument if another plan is recorded.
  void record(int64_t rows_input);
  void append(std::unique_ptr<Op> op) {
    steps_.push_back({std::move(op), rows_input_, 0, false, nullptr, {}});
  }
  int64_t size() const { return static_cast<int64_t>(steps_.size()); }

  // The `bytes` at `recorded` are one row of a buffer, which lies `offset` bytes a row into the
  // region that begins at byte `region` of the arena.
  void add_buffer(const void* recorded, int64_t bytes, int64_t rows_input, int64_t region,
                  int64_t offset);
  // The `bytes` at `recorded` are input `index` of a step.
  void add_input(const void* recorded, int64_t bytes, int64_t index);
  // The buffers of at most `max_rows` rows lie in `arena`, which is the caller's and outlives this.
  // Throws std::invalid_argument if an op reads or writes what was not added.
  void link(void* arena, int64_t max_rows);

  // Sets the inputs of the steps to come, and checks all indices in them. Inputs that lie where the
  // last ones did cost nothing else, however many ops there are.
  // Throws std::out_of_range for an index, std::invalid_argument for more rows than `max_rows`.
  void begin(const std::vector<StepInput>& inputs);
  // Runs the ops [first, last) of the step.
  void run(int64_t first, int64_t last);

  // After this plan `next` runs, but not at once: its first weights are fetched in between, where a
  // step has few rows and therefore waits for weights.
  void precede(const Plan& next);

  // Ops that had no row in a step are left out of both.
  // From now on totals of each op, from zero; off forgets them.
  void count(bool on) { counts_.assign(on ? steps_.size() : 0, OpCount{}); }
  const std::vector<OpCount>& counts() const { return counts_; }
  // From now on each run of an op, the first `max_runs` of them; 0 ends that and forgets them.
  void trace(int64_t max_runs);
  const std::vector<OpRun>& runs() const { return runs_; }

 private:
  // A range of recorded addresses, and what it means: input `index`, or a buffer if that is -1.
  struct Range {
    uintptr_t begin, end;
    int64_t index;
    int64_t rows_input, region, offset;
  };
  // What an op's pointer means: `inside` bytes into a row of the range. Constants have none.
  struct Pointer {
    Operand operand;
    const Range* range;
    int64_t inside;
  };
  struct Step {
    std::unique_ptr<Op> op;
    int64_t rows_input;
    int64_t multiple;  // rows of the op for a row of that input
    bool feeds_next;   // see `feeds`
    const PackedWeight* ahead;  // that a later op reads next, or null
    std::vector<Pointer> pointers;
  };
  struct Check {
    IndexCheck check;
    int64_t input, rows_input;
    int64_t limit_input;  // whose rows are the limit, or -1
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
  int64_t rows_input_ = -1;  // of the ops that are recorded
  std::vector<StepInput> inputs_;  // of the steps, as their ops have them
  Linear started_{};  // by the op before, if that prepared it
  std::vector<Span> after_;  // what the next plan reads first
  std::vector<OpCount> counts_;
  std::vector<OpRun> runs_;
  size_t max_runs_ = 0;
};

}  // namespace quire
