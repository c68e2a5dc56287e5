// Binding of plans.
#include "bind_plan.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "cpu/plan.h"

namespace nb = nanobind;

namespace quire {

namespace {

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

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

// (name, rows, bytes, nanoseconds) of each op in the last step.
std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> profile(Plan& plan) {
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> entries;
  for (size_t i = 0; i < plan.nanoseconds().size(); ++i) {
    Op& op = plan.op(static_cast<int64_t>(i));
    entries.emplace_back(name_of(op), rows_of(op), bytes_of(op), plan.nanoseconds()[i]);
  }
  return entries;
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
      .def("set_profiling", &Plan::set_profiling)
      .def("profile", &profile);
}

}  // namespace quire
