// Registers, buffers and conversions of attention on AMX tiles; see attention_amx.cpp.
#pragma once

#include "attention_keys.h"
#include "attention_parts.h"
#include "simd_math.h"
#include "transpose.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kSide = 16;                            // rows, and 4-byte columns, of a tile register
constexpr int kCells = kSide * kSide;                // 4-byte elements of a tile register
constexpr int kSlabs = kAttentionRows / kSide;       // of query rows
constexpr int kKeySteps = kAttentionKeys / 32;       // of 32 keys, as the inner dimension
constexpr int kDimSteps = kAttentionHeadDim / 32;    // of 32 columns, as the inner dimension
constexpr int kDimTiles = kAttentionHeadDim / kSide;
constexpr float kNothing = -1e30f;  // `top` of a row without keys

inline void configure_tiles() {
  configure(TileConfig{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                       .rows = {16, 16, 16, 16, 16, 16, 16, 16}});
}

// A partial result: acc / sum, both times 2^-top. acc is stored in whole tiles.
struct State {
  alignas(64) float top[kAttentionRows];
  alignas(64) float sum[kAttentionRows];
  alignas(64) float acc[kSlabs][kDimTiles][kCells];
  bool empty;
};

struct Work {
  int rows, slabs, group;
  int dim_steps, dim_tiles;
  alignas(64) int32_t at[kAttentionRows];     // position of each row
  alignas(64) int32_t first[kAttentionRows];  // of the tokens that it sees
  int ahead;                                  // tokens that a row sees after its own
  int last;                                   // last position of the sequence
  alignas(64) uint32_t q[kSlabs][kDimSteps][kCells];        // q^T: pairs of columns down, rows across
  alignas(64) float scores[kSlabs][kAttentionKeys][kSide];  // transposed
  alignas(64) uint32_t weights[kSlabs][kKeySteps][kCells];  // rows down, pairs of keys across
  alignas(64) uint32_t v[kKeySteps][kDimTiles][kCells];     // pairs of keys down, columns across
  alignas(64) bf16 k[2][kSide * kAttentionHeadDim];         // 16 keys in a row, as bfloat16
};

inline int64_t row_offset(const Work& w, int r, int64_t stride, int64_t dim) {
  return r / w.group * stride + r % w.group * dim;
}

inline __m512i load_bf16(const bf16* p) { return _mm512_loadu_si512(p); }
inline __m512i load_bf16(const int8_t* p) {
  const Vec low = load(p), high = load(p + kLanes);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

template <class F8>
inline __m512i load_bf16(const F8* p) {
  const __m512i apart = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);  // 8 codes to each 16 bytes
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  __m512i values, same;
  Float8Pairs<F8>().widen(_mm512_permutexvar_epi64(apart, _mm512_castsi256_si512(codes)), values, same);
  return values;
}

alignas(64) constexpr bf16 kZeros[kAttentionHeadDim] = {};

}  // namespace
}  // namespace quire::QUIRE_ISA
