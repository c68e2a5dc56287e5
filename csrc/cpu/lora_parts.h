// Low-rank adapters of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void lora_shrink(const LoraArgs& a, int64_t task);
template <class T, class Y>  // Y: of y
void lora_expand(const LoraArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
