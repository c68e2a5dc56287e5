// The passes of sample.h, of the ISA being compiled.
#pragma once

#include "kernels.h"

namespace quire::QUIRE_ISA {

extern const SampleKernels kSample;

}  // namespace quire::QUIRE_ISA
