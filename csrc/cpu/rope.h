// Rotary embedding and the paged cache, of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void rotary(const RotaryArgs& a, int64_t task);

template <class T>
void rope_kv_write(const RopeKvArgs& a, int64_t task);

}  // namespace quire::QUIRE_ISA
