// Binding of the indexes that draft tokens from text.
#include "bind.h"

#include <algorithm>
#include <bit>

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
}

}  // namespace quire
