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
constexpr int kSlabs = kAttentionMostRows / kSide;   // of query rows
constexpr int kFewRows = 8;                          // of a head, that share vectors with other keys
constexpr int kFewHeads = 4;                         // max heads of few rows that are read together
constexpr int kKeyTiles = kAttentionKeys / kSide;
constexpr int kKeySteps = kAttentionKeys / 32;       // of 32 keys, as the inner dimension
constexpr int kDimSteps = kAttentionHeadDim / 32;    // of 32 columns, as the inner dimension
constexpr int kDimTiles = kAttentionHeadDim / kSide;
constexpr float kNothing = -1e30f;  // `top` of a row without keys

template <class T>
constexpr bool kWholeNumbers = __is_same(T, int8_t);

// A partial result: acc / sum, both times 2^-top. acc is stored in whole tiles. With few rows a slab is
// a head, and `top` and `sum` repeat its rows.
struct State {
  alignas(64) float top[kAttentionMostRows];
  alignas(64) float sum[kAttentionMostRows];
  alignas(64) float acc[kSlabs][kDimTiles][kCells];
  bool empty;
};

// Of 32 keys each.
struct Steps {
  int begin, end;

  bool none() const { return begin == end; }
};

// Scores are [keys][lanes]: a slab's rows are the lanes. Few rows fill a vector with several keys.
struct Work {
  int rows, lanes;   // of a slab of few rows; else all rows, and 16
  int slabs, group;
  int dim_steps, dim_tiles;
  alignas(64) int32_t at[kAttentionMostRows];     // position of each row
  alignas(64) int32_t first[kAttentionMostRows];  // of the tokens that it sees
  alignas(64) float worth[kAttentionMostRows];    // factors of the rows' scores
  int ahead;                                  // tokens that a row sees after its own
  int last;                                   // last position of the sequence
  Steps seen[kSlabs / 2];                     // of the key tile, by some row of each pair of slabs
  // q^T: pairs of columns down, rows across. For int8 keys: fours, upper bytes and lower bytes in turns.
  alignas(64) uint32_t q[kSlabs][kDimSteps][kCells];
  alignas(64) float scores[kFewHeads][kAttentionKeys * kSide];  // of two slabs, or heads of few rows
  alignas(64) int32_t lower[kFewHeads][kAttentionKeys * kSide];  // products with lower bytes
  alignas(64) uint32_t weights[kSlabs][kKeySteps][kCells];    // rows down, pairs of keys across
  alignas(64) uint32_t v[kKeySteps][4][kCells];  // pairs of keys down, 64 columns across
  alignas(64) uint8_t k[kKeyTiles][kSide * kAttentionHeadDim * 2];  // keys that are not read in place

  bool few() const { return lanes < kSide; }
  // The rows of a slab's tiles that are used.
  int rows_of(int slab) const {
    if (few()) return rows;
    return rows - slab * kSide < kSide ? rows - slab * kSide : kSide;
  }
};

// Registers 0-3 hold sums, 4 and 5 left operands, 6 and 7 right ones.
inline void configure_tiles() {
  configure(TileConfig{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                       .rows = {16, 16, 16, 16, 16, 16, 16, 16}});
}

// The same for scores of few rows, whose right operands have few columns.
inline void configure_few_scores(const Work& w) {
  const auto bytes = static_cast<uint16_t>(4 * w.lanes);
  configure(TileConfig{.row_bytes = {bytes, bytes, bytes, bytes, 64, 64, bytes, bytes},
                       .rows = {16, 16, 16, 16, 16, 16, 16, 16}});
}

// The same for their values: left operands have few rows.
inline void configure_few_values(const Work& w) {
  const auto rows = static_cast<uint8_t>(w.rows);
  configure(TileConfig{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                       .rows = {rows, rows, rows, rows, rows, rows, 16, 16}});
}

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
// 64 codes; of every 16 bytes the first half will be columns of the first vector.
template <class F8>
inline __m512i load_codes(const F8* p) {
  const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm512_permutexvar_epi64(halves, _mm512_loadu_si512(p));
}

alignas(64) constexpr bf16 kZeros[kAttentionHeadDim] = {};

}  // namespace
}  // namespace quire::QUIRE_ISA
