#include "plan.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <type_traits>

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

const StepInput& input_at(const std::vector<StepInput>& inputs, const void* at) {
  return *std::find_if(inputs.begin(), inputs.end(), [&](const StepInput& i) { return i.at == at; });
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

const Plan::Range* Plan::range_of(const void* recorded) const {
  const uintptr_t at = number(recorded);
  for (const Range& range : ranges_) {
    if (at >= range.begin && at < range.end) return &range;
  }
  return nullptr;
}

Plan::Operand Plan::operand_of(const void* recorded, bool may_be_constant, const char* op) const {
  const Range* range = range_of(recorded);
  if (range != nullptr) return {range, static_cast<int64_t>(number(recorded) - range->begin)};
  if (recorded != nullptr && !may_be_constant) {
    throw std::invalid_argument(std::string(op) + " uses memory that the recording does not know");
  }
  return {nullptr, 0};
}

// Layers read the same indices: each array is checked once, against the least of its limits.
void Plan::add_checks(Step& step) {
  each_index(step.op, [&](const IndexCheck& check) {
    const Range* range = range_of(check.indices);
    if (range == nullptr || range->index < 0) {
      throw std::invalid_argument(std::string(name_of(step.op)) + " takes its indices from no input");
    }
    // Rows may be picked from what a step has computed or brought along, whose number varies.
    const auto* lookup = std::get_if<RowOp<EmbeddingArgs>>(&step.op);
    const bool picks = lookup != nullptr && check.indices == lookup->args.ids;
    const Range* table = picks ? range_of(lookup->args.weight) : nullptr;
    const int64_t limit_input = table != nullptr ? table->rows_input : -1;
    for (Check& known : checks_) {
      if (known.input == range->index && known.rows_input == step.rows_input &&
          known.limit_input == limit_input) {
        known.check.limit = std::min(known.check.limit, check.limit);
        return;
      }
    }
    checks_.push_back({check, range->index, step.rows_input, limit_input});
  });
}

void Plan::link(void* arena, int64_t max_rows) {
  for (Step& step : steps_) {
    step.multiple = rows_of(step.op);
    step.feeds_next = &step != &steps_.back() && feeds(step.op, (&step + 1)->op);
    add_checks(step);
    num_inputs_ = std::max(num_inputs_, step.rows_input + 1);
    each_operand(step.op, [&](auto& field, bool constant) {
      step.operands.push_back(operand_of(field, constant, name_of(step.op)));
    });
  }
  for (size_t i = steps_.size(); i-- > 1;) {
    const auto* linear = std::get_if<LinearOp>(&steps_[i].op);
    steps_[i - 1].ahead = linear != nullptr ? linear->weight : steps_[i].ahead;
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
    rows_of(step.op) = step.multiple * input(step.rows_input).rows;
    const Operand* operand = step.operands.data();
    each_operand(step.op, [&](auto& field, bool) {
      const Operand o = *operand++;
      if (o.range == nullptr) return;
      const void* start = o.range->index < 0 ? arena_ + o.range->region +
                                                   o.range->offset * input(o.range->rows_input).rows
                                             : input(o.range->index).at;
      void* at = static_cast<uint8_t*>(const_cast<void*>(start)) + o.inside;
      field = static_cast<std::remove_reference_t<decltype(field)>>(at);
    });
    if (auto* attention = std::get_if<AttentionOp>(&step.op)) {
      AttentionArgs& a = attention->args;
      a.num_seqs = input_at(inputs, a.seq_lens).rows;
      a.block_table_stride = input_at(inputs, a.block_tables).stride;
    }
  }
}

// The weights that the plan reads first, up to so many bytes.
std::vector<Span> Plan::first_reads(int64_t bytes) const {
  std::vector<Span> spans;
  for (const Step& step : steps_) {
    const auto* linear = std::get_if<LinearOp>(&step.op);
    if (linear == nullptr) continue;
    if (bytes <= 0) break;
    const int64_t read = std::min(bytes, linear->weight->nbytes());
    spans.push_back({static_cast<const uint8_t*>(linear->weight->args().weight), read});
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
    if (i + 1 == size() && rows_of(op(i)) <= kFewRows) pool_.set_idle(after_);
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
  const int64_t rows = rows_of(ran);
  if (rows == 0) return;
  const int64_t bytes = bytes_of(ran), flops = flops_of(ran);
  if (!counts_.empty()) {
    OpCount& count = counts_[static_cast<size_t>(index)];
    ++count.calls;
    count.nanoseconds += nanoseconds;
    count.rows += rows;
    count.bytes += bytes;
    count.flops += flops;
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
  if (rows_of(op(index)) == 0) return;
  if (next_too && steps_[static_cast<size_t>(index)].feeds_next) {
    const Linear next = start(pool_, std::get<LinearOp>(op(index + 1)));
    if (next.gemm->prepare_tasks(next.args) > 0) {
      run_and_prepare(pool_, op(index), next);
      started_ = next;
      return;
    }
  }
  quire::run(pool_, op(index));
}

}  // namespace quire
