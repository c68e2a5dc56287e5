#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_plan(nanobind::module_& m);

}  // namespace quire
