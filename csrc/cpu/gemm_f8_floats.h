// 8-bit floats without a dot instruction for bfloat16: lanes are output rows, in floats. A slice of W,
// 128 of k, is decoded into the L1 cache for all passes.
#pragma once

#include "gemm_f8_parts.h"

namespace quire::QUIRE_ISA {
namespace {

using X = float;
constexpr int kMostRows = kFloatRows;
constexpr int64_t kSlice = 128;  // a multiple of every group

inline bool in_place(const GemmArgs&) { return false; }
inline int64_t most_rows(const GemmArgs&) { return kMostRows; }

// The bfloat16 at the row's end as floats, from its beginning on.
inline void made_ready(float* row, int64_t k) {
  const bf16* const rounded = reinterpret_cast<const bf16*>(row) + k;
  for (int64_t i = 0; i < k; i += kLanes) store(row + i, load(rounded + i));
}

// Four columns of kLanes output rows, from the bytes that hold them.
#if defined(__AVX512F__)
template <class F8>
inline void four_columns(const uint8_t* p, Vec (&v)[4]) {
  const __m512i codes = _mm512_loadu_si512(p), none = _mm512_setzero_si512();
  const __m512i left = _mm512_unpacklo_epi16(none, codes), right = _mm512_unpackhi_epi16(none, codes);
  v[0] = widen8<F8>(_mm512_slli_epi32(left, 8));
  v[1] = widen8<F8>(left);
  v[2] = widen8<F8>(_mm512_slli_epi32(right, 8));
  v[3] = widen8<F8>(right);
}
#elif defined(__AVX2__)
template <class F8>
inline void four_columns(const uint8_t* p, Vec (&v)[4]) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i none = _mm256_setzero_si256();
  const __m256i left = _mm256_unpacklo_epi16(none, codes), right = _mm256_unpackhi_epi16(none, codes);
  v[0] = widen8<F8>(_mm256_slli_epi32(left, 8));
  v[1] = widen8<F8>(left);
  v[2] = widen8<F8>(_mm256_slli_epi32(right, 8));
  v[3] = widen8<F8>(right);
}
#else
template <class F8>
inline void four_columns(const uint8_t* p, Vec (&v)[4]) {
  Half pairs[2];
  __builtin_memcpy(pairs, p, sizeof pairs);
  for (int h = 0; h < 2; ++h) {
    const Bits both = __builtin_convertvector(pairs[h], Bits);
    v[2 * h] = widen8<F8>(both << 24);
    v[2 * h + 1] = widen8<F8>(both << 16);
  }
}
#endif

// k columns as [k][32 rows].
template <class F8>
void decode(const uint8_t* from, int64_t k, int64_t ahead, float* to) {
  for (int64_t i = 0; i < k; i += 4, to += 4 * kBlockRows) {
    for (int64_t n = 0; n < kBlockRows; n += kLanes, from += 4 * kLanes) {
      if (n % 16 == 0) fetch(from, ahead);
      Vec v[4];
      four_columns<F8>(from, v);
      for (int j = 0; j < 4; ++j) store(to + j * kBlockRows + n, v[j]);
    }
  }
}

// sums[R][V vectors] += x · W over k columns; with a scale, += scale * (x · W).
template <int R, int64_t V>
void add_lanes(float* sums, const float* x, int64_t stride, const float* w, int64_t k,
               const float* scale) {
  Vec c[R][V];
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      c[r][j] = scale == nullptr ? load(sums + r * kBlockRows + j * kLanes) : zero();
    }
  }
  for (int64_t i = 0; i < k; ++i, w += kBlockRows) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      const Vec v = load(w + j * kLanes);
      QUIRE_UNROLL for (int r = 0; r < R; ++r) c[r][j] = fma(broadcast(x[r * stride + i]), v, c[r][j]);
    }
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int64_t j = 0; j < V; ++j) {
      float* const to = sums + r * kBlockRows + j * kLanes;
      store(to, scale == nullptr ? c[r][j] : fma(load(scale + j * kLanes), c[r][j], load(to)));
    }
  }
}

template <int R = kMostRows>
inline void add_rows(int64_t rows, float* sums, const float* x, int64_t stride, const float* w,
                     int64_t k, const float* scale) {
  if constexpr (R > 1) {
    if (rows < R) return add_rows<R - 1>(rows, sums, x, stride, w, k, scale);
  }
  constexpr int64_t kVecs = kBlockRows / kLanes;
  constexpr int64_t kWide = kLanes == 16 ? 12 : kLanes == 8 ? 2 : 1;  // rows that take all columns
  constexpr int64_t kAtOnce = R <= kWide ? kVecs : kVecs / 2;
  for (int64_t n = 0; n < kBlockRows; n += kAtOnce * kLanes) {
    add_lanes<R, kAtOnce>(sums + n, x, stride, w + n, k, scale == nullptr ? nullptr : scale + n);
  }
}

template <class F8>
void add_block(float* sums, const F8Block<float>& b) {
  alignas(64) float decoded[kSlice * kBlockRows];
  for (int64_t i = 0; i < b.k; i += kSlice) {
    const int64_t end = smaller(i + kSlice, b.k);
    decode<F8>(b.weight + i * kBlockRows, end - i, b.ahead, decoded);
    b.each_pass([&](int64_t rows, int64_t r) {
      for (int64_t j = i; j < end; j += b.group) {
        add_rows(rows, sums + r * kBlockRows, b.x + r * b.stride + j, b.stride,
                 decoded + (j - i) * kBlockRows, smaller(b.group, end - j),
                 b.scale == nullptr ? nullptr : b.scale + j / b.group * kBlockRows);
      }
    });
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
