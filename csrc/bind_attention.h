#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_attention(nanobind::module_& m);

}  // namespace quire
