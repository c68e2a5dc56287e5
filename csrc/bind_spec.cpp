// Bindings of what drafts tokens: indexes of text, and the passes of a draft model.
#include "bind.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "spec/draft_passes.h"
#include "spec/drafts.h"
#include "spec/suffix_index.h"

namespace nb = nanobind;

namespace quire {

namespace {

// A row of token ids of each slot, and how many each has; int32 [slots, width] and int64 [slots].
void propose(DraftIndex& index, uintptr_t tokens, uintptr_t num_tokens, int64_t width,
             uintptr_t slots, uintptr_t most, uintptr_t counts, int64_t size) {
  const TokenRows rows{pointer<int32_t>(tokens), pointer<const int64_t>(num_tokens), width};
  const nb::gil_scoped_release unlocked;
  index.propose(rows, pointer<const int64_t>(slots), pointer<const int64_t>(most),
                pointer<int64_t>(counts), size);
}

void end(DraftIndex& index, int64_t slot, uintptr_t tokens, int64_t num_tokens) {
  index.end(slot, pointer<const int32_t>(tokens), num_tokens);
}

using PlanTuple = std::tuple<Plan*, uintptr_t, int64_t, int64_t>;
using SequenceTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, const DraftDraw*>;

WholePlan whole(const PlanTuple& given) {
  const auto [plan, result, offset, stride] = given;
  return {plan, pointer<const uint8_t>(result), offset, stride};
}

void run_passes(DraftPasses& passes, uintptr_t tokens, int64_t width, uintptr_t tables,
                const std::vector<SequenceTuple>& given) {
  const TokenRows rows{pointer<int32_t>(tokens), nullptr, width};
  std::vector<DraftPasses::Sequence> sequences;
  sequences.reserve(given.size());
  for (const auto& [slot, start, taken, wanted, num_output, draw] : given) {
    sequences.push_back({slot, start, taken, wanted, num_output, draw});
  }
  const nb::gil_scoped_release unlocked;
  passes.run(rows, pointer<const int32_t>(tables), sequences);
}

}  // namespace

void bind_spec(nb::module_& m) {
  nb::class_<DraftIndex>(m, "DraftIndex")
      .def("begin", &DraftIndex::begin)
      .def("end", &end)
      .def("propose", &propose);
  nb::class_<NgramIndex, DraftIndex>(m, "NgramIndex").def(nb::init<int64_t, int64_t, int64_t>());
  nb::class_<SuffixIndex, DraftIndex>(m, "SuffixIndex")
      .def("__init__", [](SuffixIndex* self, int64_t slots, int64_t max_depth, int64_t max_answers,
                          int64_t max_tokens, double max_factor, double min_probability) {
        const int64_t ring = static_cast<int64_t>(
            std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(max_tokens, 1, 1 << 30))));
        new (self)
            SuffixIndex(slots, {max_depth, max_answers, ring, max_factor, min_probability});
      });
  nb::class_<DraftDraw>(m, "DraftDraw").def(
      "__init__", [](DraftDraw* self, double temperature, int64_t top_k, double top_p, double min_p,
                     uint64_t seed) {
        new (self) DraftDraw{};
        self->row.temperature = temperature;
        self->row.top_k = top_k;
        self->row.top_p = top_p;
        self->row.min_p = min_p;
        self->seed = seed;
      });
  nb::class_<DraftPasses>(m, "DraftPasses")
      .def("__init__",
           [](DraftPasses* self, const PlanTuple& forward, const PlanTuple& logits,
              Sampler& sampler, int64_t vocab, int64_t block_size, int64_t max_tokens,
              int64_t max_sequences, int64_t width) {
             new (self) DraftPasses(whole(forward), whole(logits), sampler, vocab, block_size,
                                    max_tokens, max_sequences, width);
           })
      .def("run", &run_passes);
}

}  // namespace quire
