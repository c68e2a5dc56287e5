// Paged attention of the ISA being compiled; T (float, bf16, f16, int8_t, f8_e4m3 or f8_e5m2) is the dtype of the cache.
#pragma once

#include "kernels.h"
#include "tiles.h"

namespace quire::QUIRE_ISA {

template <class T>
void paged_attention(const AttentionArgs& a, int64_t task);

// The same for any shape.
template <class T>
void attention(const AttentionArgs& a, int64_t task);

// Over latents; `room` is the thread's memory, of latent_room_floats.
template <class T>
void latent_attention(const LatentArgs& a, int64_t task, float* room);

#if defined(QUIRE_TILES)
// Over latents on tiles, if q is bfloat16; T is bf16 or of 8 bits.
template <class T>
void tiled_latent_attention(const LatentArgs& a, int64_t task, float* room);

// Of other keys and values on tiles, if they compute the shape; T is bf16 or of 8 bits.
template <class T>
void tiled_attention(const AttentionArgs& a, int64_t task);

// The table's `tile_rows`.
int64_t tiled_attention_rows(const AttentionArgs& a, int dtype);
#endif

// y[i] = 2^x[i] as attention computes it.
void exp2_floats(float* y, const float* x, int64_t count);

}  // namespace quire::QUIRE_ISA
