// Choices among logits, of the ISA being compiled.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

void argmax(const ArgmaxArgs& a, int64_t task);
int64_t top_k(const TopKArgs& a);

}  // namespace quire::QUIRE_ISA
