// Binding of plans.
#include "bind.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "cpu/plan.h"

namespace nb = nanobind;

namespace quire {

namespace {

using InputTuple = std::tuple<uintptr_t, int64_t, int64_t>;

void begin(Plan& plan, const std::vector<InputTuple>& inputs) {
  std::vector<StepInput> given;
  given.reserve(inputs.size());
  for (const auto& [at, count, stride] : inputs) given.push_back({pointer(at), count, stride});
  plan.begin(given);
}

void run_ops(Plan& plan, int64_t first, int64_t last) {
  const nb::gil_scoped_release unlocked;
  plan.run(first, last);
}

using CountTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;

std::vector<CountTuple> counts(const Plan& plan) {
  std::vector<CountTuple> all;
  all.reserve(plan.counts().size());
  for (const OpCount& c : plan.counts()) {
    all.emplace_back(c.calls, c.nanoseconds, c.rows, c.bytes, c.flops);
  }
  return all;
}

nb::bytes runs(const Plan& plan) {
  static_assert(sizeof(OpRun) == 6 * sizeof(int64_t), "a run is a row of six numbers");
  return nb::bytes(plan.runs().data(), plan.runs().size() * sizeof(OpRun));
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<Pool&>(), nb::keep_alive<1, 2>())
      .def("record", &Plan::record)
      .def("__len__", &Plan::size)
      .def("add_buffer",
           [](Plan& p, uintptr_t recorded, int64_t bytes, int64_t rows_input, int64_t region,
              int64_t offset) {
             p.add_buffer(pointer(recorded), bytes, rows_input, region, offset);
           })
      .def("add_input", [](Plan& p, uintptr_t recorded, int64_t bytes,
                           int64_t index) { p.add_input(pointer(recorded), bytes, index); })
      .def("link", [](Plan& p, uintptr_t memory, int64_t rows) { p.link(pointer(memory), rows); })
      .def("begin", &begin)
      .def("run", &run_ops)
      .def("precede", &Plan::precede)
      .def("count", &Plan::count)
      .def("counts", &counts)
      .def("tallies", &Plan::tallies)
      .def("trace", &Plan::trace)
      .def("runs", &runs);
}

}  // namespace quire
