// Binding of the sums over a group of processes.
#include "bind_ranks.h"

#include <stdexcept>

#include "cpu/rank_group.h"
#include "submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

void all_reduce(const Kernels& kernels, Pool& pool, RankGroup& group, int dtype, uintptr_t y,
                uintptr_t x, int64_t rows, int64_t cols) {
  if (dtype < 0 || dtype >= kDTypeCount) throw std::invalid_argument("unknown dtype code");
  submit(pool, AllReduceOp{&kernels, &group, pointer(y), static_cast<DType>(dtype),
                           static_cast<const float*>(pointer(x)), rows, cols});
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<RankGroup>(m, "RankGroup")
      .def("__init__", [](RankGroup* group, uintptr_t memory, int rank,
                          int ranks) { new (group) RankGroup(pointer(memory), rank, ranks); })
      .def("begin", &RankGroup::begin)
      .def("fail", &RankGroup::fail)
      .def("lose", &RankGroup::lose);
  m.def("rank_group_bytes", &RankGroup::bytes);
  m.def("all_reduce", &all_reduce);
}

}  // namespace quire
