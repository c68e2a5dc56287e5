// The number formats of tensors. Plain data: this header is compiled into every ISA.
#pragma once

#include <stdint.h>

namespace quire {

// Storage of the 16-bit floats; arithmetic is always in float.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

enum DType : int { kFloat32, kBFloat16, kFloat16, kDTypeCount };

}  // namespace quire
