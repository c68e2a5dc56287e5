// Attention over latents on AMX tiles, in bfloat16 (which represents int8 and 8-bit floats exactly), with
// the tasks, tiles and guarantees of attention_latent.cpp.
//
//   scores^T [keys, rows] = K [keys, width] x q^T    q repacked once
//   acc [rows, latent]   += weights x V              V in pairs of keys
#include "attention_latent_parts.h"
#include "attention_parts.h"
#include "tiles.h"
#include "transpose.h"

namespace quire::QUIRE_ISA {

namespace {

struct AmxTile : PairsOf {
  using PairsOf::PairsOf;

  // Query rows of 16 as the right operand of a tile product: pairs of columns down, rows across.
  void finish_queries(int rows) const {
    for (int slab = 0; slab < rows; slab += 16) {
      for (int64_t step = 0; step < width; step += 32) {
        __m512i lines[16];
        for (int i = 0; i < 16; ++i) lines[i] = _mm512_loadu_si512(q + (slab + i) * width + step);
        // In place: these 16 pieces are read by nothing else.
        alignas(64) uint32_t pairs[256];
        transpose(lines, pairs);
        for (int i = 0; i < 16; ++i) {
          _mm512_storeu_si512(q + (slab + i) * width + step, _mm512_load_si512(pairs + 16 * i));
        }
      }
    }
  }

  void score(int rows, int end, float* scores) const {
    configure_all();
    for (int j = 0; j < end; j += 32) {
      int slab = 0;
      for (; slab + 16 < rows; slab += 32) score_tiles<2>(slab, j, scores);
      if (slab < rows) score_tiles<1>(slab, j, scores);
    }
    _tile_release();
  }

  static void configure_all() {
    configure(TileConfig{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                         .rows = {16, 16, 16, 16, 16, 16, 16, 16}});
  }

  // 32 keys and one or two slabs of 16 rows; scores come transposed.
  template <int Slabs>
  QUIRE_ONCE void score_tiles(int slab, int j, float* scores) const {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Slabs == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    const int64_t stride = 2 * width;
    for (int64_t step = 0; step < width; step += 32) {
      QUIRE_TILE_LOAD(4, k + j * width + step, stride);
      QUIRE_TILE_LOAD(5, k + (j + 16) * width + step, stride);
      QUIRE_TILE_LOAD(6, q + slab * width + step, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if constexpr (Slabs == 2) {
        QUIRE_TILE_LOAD(7, q + (slab + 16) * width + step, stride);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    alignas(64) float found[4][256];
    _tile_stored(0, found[0], 64);
    _tile_stored(1, found[1], 64);
    if constexpr (Slabs == 2) {
      _tile_stored(2, found[2], 64);
      _tile_stored(3, found[3], 64);
    }
    __asm__ volatile("" : : : "memory");
    for (int i = 0; i < 2 * Slabs; ++i) {
      __m512i lines[16];
      for (int n = 0; n < 16; ++n) lines[n] = _mm512_load_si512(found[i] + 16 * n);
      alignas(64) uint32_t rows[256];
      transpose(lines, rows);
      float* const to = scores + (slab + i / 2 * 16) * kKeys + j + i % 2 * 16;
      for (int n = 0; n < 16; ++n) {
        _mm512_storeu_si512(to + n * kKeys, _mm512_load_si512(rows + 16 * n));
      }
    }
  }

  void add_values(int rows, int last, const float* weights, const float* keep, float* acc) const {
    round_weights(rows, last, weights);
    for (int r = 0; r < rows; ++r) {
      if (keep[r] == 1.0f) continue;
      for (int64_t d = 0; d < columns; d += kLanes) {
        float* const to = acc + r * columns + d;
        store(to, mul(load(to), broadcast(keep[r])));
      }
    }
    configure_all();
    int slab = 0;
    for (; slab + 16 < rows; slab += 32) add_tiles<2>(slab, last, acc);
    if (slab < rows) add_tiles<1>(slab, last, acc);
    _tile_release();
  }

  template <int Slabs>
  QUIRE_ONCE void add_tiles(int slab, int last, float* acc) const {
    const int64_t stride = 4 * columns;
    const bf16* const weights = w + slab * kKeys;
    for (int64_t d = 0; d < columns; d += 32) {
      float* const to = acc + slab * columns + d;
      float* const below = to + 16 * columns;
      QUIRE_TILE_LOAD(0, to, stride);
      QUIRE_TILE_LOAD(1, to + 16, stride);
      if constexpr (Slabs == 2) {
        QUIRE_TILE_LOAD(2, below, stride);
        QUIRE_TILE_LOAD(3, below + 16, stride);
      }
      for (int j = 0; j < last; j += 32) {
        const bf16* const values = v + j * columns + 2 * d;
        QUIRE_TILE_LOAD(4, weights + j, 2 * kKeys);
        QUIRE_TILE_LOAD(6, values, stride);
        QUIRE_TILE_LOAD(7, values + 32, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (Slabs == 2) {
          QUIRE_TILE_LOAD(5, weights + 16 * kKeys + j, 2 * kKeys);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, to, stride);
      _tile_stored(1, to + 16, stride);
      if constexpr (Slabs == 2) {
        _tile_stored(2, below, stride);
        _tile_stored(3, below + 16, stride);
      }
    }
    __asm__ volatile("" : : : "memory");
  }
};

}  // namespace

template <class T>
void tiled_latent_attention(const LatentArgs& a, int64_t index, float* room) {
  if (a.base.q_dtype != kBFloat16) return latent_attention<T>(a, index, room);
  Work<T, AmxTile>(a, a.base.tasks[index], room).run();
}

template void tiled_latent_attention<bf16>(const LatentArgs&, int64_t, float*);
template void tiled_latent_attention<int8_t>(const LatentArgs&, int64_t, float*);
template void tiled_latent_attention<f8_e4m3>(const LatentArgs&, int64_t, float*);
template void tiled_latent_attention<f8_e5m2>(const LatentArgs&, int64_t, float*);

}  // namespace quire::QUIRE_ISA
