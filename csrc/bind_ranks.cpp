// Bindings of what a group of processes computes together.
#include "bind.h"

#include "cpu/rank_group.h"
#include "submit.h"

namespace nb = nanobind;

namespace quire {

namespace {

void all_reduce(const Kernels& kernels, Pool& pool, RankGroup& group, int dtype, uintptr_t y,
                uintptr_t x, int64_t rows, int64_t cols) {
  submit(pool, AllReduceOp{&kernels, &group, pointer(y), dtype_of(dtype), pointer<const float>(x),
                           rows, cols});
}

// `weight` is null where the rank's rows are in `table`.
void vocab_embedding(Pool& pool, RankGroup& group, const PackedWeight* weight, uintptr_t table,
                     int64_t table_stride, int dtype, uintptr_t y, uintptr_t ids, int64_t rows,
                     int64_t cols, int64_t first, int64_t count, int64_t vocab) {
  submit(pool, SharedLookupOp{&group, weight, pointer(table), table_stride, dtype_of(dtype),
                              pointer(y), pointer<const int64_t>(ids), rows, cols, first, count,
                              vocab});
}

void all_gather(Pool& pool, RankGroup& group, uintptr_t y, uintptr_t x, int64_t rows, int64_t cols,
                int64_t first, int64_t width) {
  submit(pool, AllGatherOp{&group, pointer<float>(y), pointer<const float>(x), rows, cols, first,
                           width});
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<RankGroup>(m, "RankGroup")
      .def("__init__", [](RankGroup* group, uintptr_t memory, int rank,
                          int ranks) { new (group) RankGroup(pointer(memory), rank, ranks); })
      .def("begin", &RankGroup::begin)
      .def("fail", &RankGroup::fail)
      .def("lose", &RankGroup::lose)
      .def("waited", &RankGroup::waited);
  m.def("rank_group_bytes", &RankGroup::bytes);
  m.def("all_reduce", &all_reduce);
  m.def("vocab_embedding", &vocab_embedding, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg());
  m.def("all_gather", &all_gather);
}

}  // namespace quire
