#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_ranks(nanobind::module_& m);

}  // namespace quire
