// The largest of logits, of the ISA being compiled.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

void argmax(const ArgmaxArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
