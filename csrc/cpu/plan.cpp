#include "plan.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace quire {

namespace {

constexpr int64_t kFewRows = 8;  // a step of so many waits for its weights
constexpr int64_t kIdleBytes = 16 << 20;

// What is fetched between two plans: it has to stay in the last-level cache.
int64_t idle_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  return std::clamp<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE) / 2, 0, kIdleBytes);
#else
  return 0;
#endif
}

uintptr_t number(const void* p) { return reinterpret_cast<uintptr_t>(p); }

int64_t now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

Plan::~Plan() {
  if (pool_.recording == this) pool_.recording = nullptr;
}

void Plan::record(int64_t rows_input) {
  if (pool_.recording != nullptr && pool_.recording != this) {
    throw std::invalid_argument("the pool's ops are recorded into another plan");
  }
  pool_.recording = rows_input >= 0 ? this : nullptr;
  rows_input_ = rows_input;
}

void Plan::add_buffer(const void* recorded, int64_t bytes, int64_t rows_input, int64_t region,
                      int64_t offset) {
  const uintptr_t begin = number(recorded);
  ranges_.push_back(
      {begin, begin + static_cast<uintptr_t>(bytes), -1, rows_input, region, offset});
}

void Plan::add_input(const void* recorded, int64_t bytes, int64_t index) {
  const uintptr_t begin = number(recorded);
  ranges_.push_back({begin, begin + static_cast<uintptr_t>(bytes), index, index, 0, 0});
  num_inputs_ = std::max(num_inputs_, index + 1);
}

void check_indices(const IndexCheck& check, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    if (check.indices[i] < check.least || check.indices[i] >= check.limit) {
      throw std::out_of_range(std::string(check.what) + " " + std::to_string(check.indices[i]) +
                              " of row " + std::to_string(i) + " is not in [" +
                              std::to_string(check.least) + ", " + std::to_string(check.limit) +
                              ")");
    }
  }
}

const Plan::Range* Plan::range_of(const void* recorded) const {
  const uintptr_t at = number(recorded);
  for (const Range& range : ranges_) {
    if (at >= range.begin && at < range.end) return &range;
  }
  return nullptr;
}

// Layers read the same indices: each array is checked once, against the least of its limits.
void Plan::add_checks(Step& step) {
  for (const IndexCheck& check : step.op->indices()) {
    const Range* range = range_of(check.indices);
    if (range == nullptr || range->index < 0) {
      throw std::invalid_argument(std::string(step.op->name()) + " takes its indices from no input");
    }
    // Rows may be picked from what a step has computed or brought along, whose number varies.
    const Range* table = range_of(check.table);
    const int64_t limit_input = table != nullptr ? table->rows_input : -1;
    const auto known = std::find_if(checks_.begin(), checks_.end(), [&](const Check& c) {
      return c.input == range->index && c.rows_input == step.rows_input &&
             c.limit_input == limit_input;
    });
    if (known != checks_.end()) {
      known->check.limit = std::min(known->check.limit, check.limit);
    } else {
      checks_.push_back({check, range->index, step.rows_input, limit_input});
    }
  }
}

void Plan::add_pointers(Step& step) {
  for (const Operand& operand : step.op->operands()) {
    const void* const recorded = operand.get();
    const Range* range = range_of(recorded);
    if (range != nullptr) {
      step.pointers.push_back(
          {operand, range, static_cast<int64_t>(number(recorded) - range->begin)});
    } else if (recorded != nullptr && !operand.constant) {
      throw std::invalid_argument(std::string(step.op->name()) +
                                  " uses memory that the recording does not know");
    }
  }
}

void Plan::link(void* arena, int64_t max_rows) {
  for (Step& step : steps_) {
    step.multiple = step.op->rows();
    step.feeds_next = &step != &steps_.back() && feeds(*step.op, *(&step + 1)->op);
    add_checks(step);
    add_pointers(step);
    num_inputs_ = std::max(num_inputs_, step.rows_input + 1);
  }
  for (size_t i = steps_.size(); i-- > 1;) {
    const PackedWeight* const weight = steps_[i].op->weight();
    steps_[i - 1].ahead = weight != nullptr ? weight : steps_[i].ahead;
  }
  arena_ = static_cast<uint8_t*>(arena);
  max_rows_ = max_rows;
}

void Plan::check_inputs(const std::vector<StepInput>& inputs) const {
  if (static_cast<int64_t>(inputs.size()) < num_inputs_) {
    throw std::invalid_argument("the plan has " + std::to_string(num_inputs_) + " inputs");
  }
  for (const Step& step : steps_) {
    const int64_t rows = inputs[static_cast<size_t>(step.rows_input)].rows;
    if (rows > max_rows_) {
      throw std::invalid_argument("a step of " + std::to_string(rows) + " rows; the plan is for " +
                                  std::to_string(max_rows_));
    }
  }
  for (const Check& c : checks_) {
    const StepInput& indices = inputs[static_cast<size_t>(c.input)];
    const int64_t rows = inputs[static_cast<size_t>(c.rows_input)].rows;
    if (indices.rows != rows) {
      throw std::invalid_argument(std::to_string(indices.rows) + " " + c.check.what + "s for " +
                                  std::to_string(rows) + " rows");
    }
    IndexCheck check = c.check;
    check.indices = static_cast<const int64_t*>(indices.at);
    if (c.limit_input >= 0) check.limit = inputs[static_cast<size_t>(c.limit_input)].rows;
    check_indices(check, rows);
  }
}

void Plan::begin(const std::vector<StepInput>& inputs) {
  if (arena_ == nullptr) throw std::invalid_argument("the plan is not linked");
  check_inputs(inputs);
  started_.gemm = nullptr;
  if (inputs == inputs_) return;
  inputs_ = inputs;
  const auto input = [&](int64_t i) -> const StepInput& { return inputs[static_cast<size_t>(i)]; };
  for (Step& step : steps_) {
    step.op->rows() = step.multiple * input(step.rows_input).rows;
    for (const Pointer& pointer : step.pointers) {
      const Range& range = *pointer.range;
      const void* const start =
          range.index < 0 ? arena_ + range.region + range.offset * input(range.rows_input).rows
                          : input(range.index).at;
      pointer.operand.set(static_cast<const uint8_t*>(start) + pointer.inside);
    }
    step.op->set_inputs(inputs);
  }
}

// The weights that the plan reads first, up to so many bytes.
std::vector<Span> Plan::first_reads(int64_t bytes) const {
  std::vector<Span> spans;
  for (const Step& step : steps_) {
    const PackedWeight* const weight = step.op->weight();
    if (weight == nullptr) continue;
    if (bytes <= 0) break;
    const int64_t read = std::min(bytes, weight->nbytes());
    spans.push_back({static_cast<const uint8_t*>(weight->args().weight), read});
    bytes -= read;
  }
  return spans;
}

void Plan::precede(const Plan& next) { after_ = next.first_reads(idle_bytes()); }

void Plan::run(int64_t first, int64_t last) {
  if (first < 0 || last > size()) throw std::invalid_argument("no such ops");
  pool_.set_idle({});
  for (int64_t i = first; i < last; ++i) {
    // Before the last op: a thread that is done with it looks once for what else there is.
    if (i + 1 == size() && op(i).rows() <= kFewRows) pool_.set_idle(after_);
    if (counts_.empty() && max_runs_ == 0) {
      run_step(i, i + 1 < last);
      continue;
    }
    const int64_t begin = now();
    run_step(i, i + 1 < last);
    note(i, begin, now() - begin);
  }
}

void Plan::trace(int64_t max_runs) {
  max_runs_ = static_cast<size_t>(std::max<int64_t>(0, max_runs));
  runs_ = {};
  runs_.reserve(max_runs_);
}

void Plan::note(int64_t index, int64_t begin, int64_t nanoseconds) {
  Op& ran = op(index);
  const int64_t rows = ran.rows();
  if (rows == 0) return;
  const int64_t bytes = ran.bytes(), flops = ran.flops();
  if (!counts_.empty()) {
    OpCount& count = counts_[static_cast<size_t>(index)];
    ++count.calls;
    count.nanoseconds += nanoseconds;
    count.rows += rows;
    count.bytes += bytes;
    count.flops += flops;
    ran.tally(tallies_[static_cast<size_t>(index)]);
  }
  if (runs_.size() < max_runs_) runs_.push_back({index, begin, nanoseconds, rows, bytes, flops});
}

void Plan::run_step(int64_t index, bool next_too) {
  const PackedWeight* const ahead = steps_[static_cast<size_t>(index)].ahead;
  if (ahead != nullptr) {
    pool_.set_ahead(ahead->args().weight, ahead->nbytes());
  } else {
    pool_.set_ahead(nullptr, 0);
  }
  if (started_.gemm != nullptr) {
    multiply(pool_, started_);
    started_.gemm = nullptr;
    return;
  }
  if (op(index).rows() == 0) return;
  if (next_too && steps_[static_cast<size_t>(index)].feeds_next) {
    const Linear next = op(index + 1).start(pool_);
    if (next.gemm->prepare_tasks(next.args) > 0) {
      op(index).run_and_prepare(pool_, next);
      started_ = next;
      return;
    }
  }
  op(index).run(pool_);
}

}  // namespace quire
