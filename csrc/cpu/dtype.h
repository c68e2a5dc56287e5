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

// Of weights and caches alone: E4M3 has no infinity, and NaN where all magnitude bits are set.
struct f8_e4m3 {
  uint8_t bits;
};
struct f8_e5m2 {
  uint8_t bits;
};

enum DType : int { kFloat32, kBFloat16, kFloat16, kDTypeCount };
static inline int64_t item_bytes(DType dtype) { return dtype == kFloat32 ? 4 : 2; }
// The dtypes of a KV cache: those of tensors, int8 and int4 with one scale per token and head, 8-bit
// floats with such scales or without.
enum : int { kInt8 = kDTypeCount, kFloat8E4M3, kFloat8E5M2, kInt4, kCacheDTypeCount };

}  // namespace quire
