// RMSNorm kernels of the ISA being compiled; T is float, bf16 or f16.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

template <class T>
void rms_norm(const RmsNormArgs& a);

template <class T>
void add_rms_norm(const AddRmsNormArgs& a);

}  // namespace quire::QUIRE_ISA
