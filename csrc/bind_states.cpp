// Which slots of recurrent states a pass reads and writes (runner/recurrent.py).
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "bind.h"

namespace nb = nanobind;

namespace quire {

namespace {

constexpr int64_t kNone = -1;  // no slot; as an end, no pass yet

// The numpy arrays of `StateSlotTables`, with a row per sequence.
struct StateArrays {
  const int32_t* slots;    // [rows, blocks]: of the state after each block
  const int64_t* working;  // [rows, width]
  int64_t* recent;         // [rows, width + 1]: of the states after `end` tokens, after one less …
  int64_t* end;            // [rows]
  int32_t* from;           // [rows]
  int64_t* to;             // [tokens]
  int64_t blocks, width, block_size;
};

class StateTables {
 public:
  StateTables(uintptr_t slots, uintptr_t working, uintptr_t recent, uintptr_t end, uintptr_t from,
              uintptr_t to, int64_t rows, int64_t blocks, int64_t width, int64_t block_size)
      : a_{pointer<const int32_t>(slots), pointer<const int64_t>(working), pointer<int64_t>(recent),
           pointer<int64_t>(end), pointer<int32_t>(from), pointer<int64_t>(to), blocks, width,
           block_size},
        kept_(static_cast<size_t>(rows), kNone) {}

  void begin_step() {
    begins_ = true;
    rows_.clear();
    before_.clear();
  }

  void undo() {
    const int64_t* before = before_.data();
    for (const int64_t row : rows_) {
      a_.end[row] = *before++;
      std::copy_n(before, recent_width(), recent(row));
      before += recent_width();
    }
  }

  // A pass of `num` sequences. rows, starts: [num]; first: [num + 1], where the tokens of each begin; drafts:
  // [num] or null.
  void next(uintptr_t rows_at, uintptr_t starts_at, uintptr_t first_at, uintptr_t drafts_at,
            int64_t num) {
    const auto *rows = pointer<const int64_t>(rows_at), *starts = pointer<const int64_t>(starts_at);
    const auto* first = pointer<const int32_t>(first_at);
    const auto* drafts = pointer<const int64_t>(drafts_at);
    for (int64_t i = 0; i < num; ++i) {
      const int64_t row = rows[i], source = find(row, starts[i]);
      if (begins_) keep(row, source);
      write(row, source, starts[i], first[i + 1] - first[i], drafts == nullptr ? 0 : drafts[i],
            a_.to + first[i]);
      a_.from[i] = static_cast<int32_t>(source);
    }
    begins_ = false;
  }

 private:
  int64_t recent_width() const { return a_.width + 1; }
  int64_t* recent(int64_t row) const { return a_.recent + row * recent_width(); }
  int64_t& kept(int64_t row) { return kept_[static_cast<size_t>(row)]; }

  // The slot of a sequence's state after its first `start` tokens. There is none if a prompt's last row is
  // computed again, because it could not be sampled: its request ends with an error.
  int64_t find(int64_t row, int64_t start) const {
    const int64_t end = a_.end[row], behind = end == kNone ? 0 : end - start;
    return behind >= 0 && behind < a_.width ? recent(row)[behind] : kNone;
  }

  // Notes where a step begins.
  void keep(int64_t row, int64_t source) {
    kept(row) = source;
    rows_.push_back(row);
    before_.push_back(a_.end[row]);
    before_.insert(before_.end(), recent(row), recent(row) + recent_width());
  }

  // The first working slot from `place` on that the pass may write; moves `place` behind it.
  int64_t free_slot(int64_t row, int64_t source, int64_t& place) {
    while (place < a_.width) {
      const int64_t slot = a_.working[row * a_.width + place++];
      if (slot != source && slot != kept(row)) return slot;
    }
    throw std::logic_error("a pass has more drafts than working slots of states");
  }

  // Chooses the slot of each of `count` tokens, of which the last `drafts` are drafts.
  void write(int64_t row, int64_t source, int64_t start, int64_t count, int64_t drafts, int64_t* to) {
    std::fill_n(to, count, kNone);
    const int64_t size = a_.block_size;
    for (int64_t block = start / size; (block + 1) * size <= start + count; ++block) {
      to[(block + 1) * size - 1 - start] = a_.slots[row * a_.blocks + block];
    }
    int64_t place = 0, *const own = recent(row);
    std::fill_n(own, recent_width(), kNone);
    for (int64_t behind = 0; behind <= drafts; ++behind) {  // the last row, the one before it …
      int64_t& slot = to[count - 1 - behind];
      if (slot == kNone) slot = free_slot(row, source, place);
      own[behind] = slot;
    }
    a_.end[row] = start + count;
    own[std::min(count, a_.width)] = source;  // it may begin again where this pass did
  }

  StateArrays a_;
  std::vector<int64_t> kept_;  // [rows]: the slot with which the step began
  bool begins_ = true;         // the next pass is the first of a step
  std::vector<int64_t> rows_, before_;  // of the step; their `end` and `recent` before it
};

}  // namespace

void bind_states(nb::module_& m) {
  nb::class_<StateTables>(m, "StateTables")
      .def(nb::init<uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t,
                    int64_t, int64_t>())
      .def("begin_step", &StateTables::begin_step)
      .def("undo", &StateTables::undo)
      .def("next", &StateTables::next);
}

}  // namespace quire
