// A layer's KV cache, as bindings take it.
#pragma once

#include <stdint.h>

#include "../cpu/dtype.h"

namespace quire {

// k and v [blocks, kv_heads, block_size, head_dim], a token's elements contiguous, those of a head
// one token after the other; strides in elements, of which int4 has two per byte. Scales [blocks,
// kv_heads, block_size], contiguous, or null: bfloat16, or bytes of int4, whose keys have signs
// [blocks, kv_heads, block_size, head_dim / 8], too (int4.h). Units are those of 8-bit floats without
// scales. v is null where a token's value is part of
// its key.
struct KvCache {
  void *k, *v;
  int dtype;
  void *k_scale, *v_scale;
  uint8_t* k_signs;
  double k_unit, v_unit;
  int64_t blocks, kv_heads, block_size, head_dim;
  int64_t k_block_stride, v_block_stride, head_stride;

  // Bytes of a token's keys and values.
  int64_t token_bytes() const {
    if (dtype == kInt4) return kv_heads * (head_dim * 9 / 8 + 2);
    const int64_t item = dtype >= kInt8 ? 1 : item_bytes(static_cast<DType>(dtype));
    const int64_t head = head_dim * item;
    return (v == nullptr ? 1 : 2) * kv_heads * (head + (k_scale != nullptr ? 2 : 0));
  }
};

}  // namespace quire
