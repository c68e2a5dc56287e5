// Paged attention of the ISA being compiled; T (float, bf16 or f16) is the dtype of the cache.
#pragma once

#include "kernels.h"
#include "tiles.h"

namespace quire::QUIRE_ISA {

template <class T>
void paged_attention(const AttentionArgs& a, int64_t task);

#if defined(QUIRE_TILES)
// Whether `tiled_attention` computes this shape, with a bfloat16 cache.
bool attention_fits_tiles(const AttentionArgs& a);
// kv heads [head, end_head) of a tile.
void tiled_attention(const AttentionArgs& a, const AttentionTile& tile, int64_t head,
                     int64_t end_head);
#endif

// y[i] = 2^x[i] as attention computes it.
void exp2_floats(float* y, const float* x, int64_t count);

}  // namespace quire::QUIRE_ISA
