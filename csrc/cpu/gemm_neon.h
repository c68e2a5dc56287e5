// Products of lines of int8 or bfloat16 with NEON. A line (gemm.h) is four registers, which hold 4 bytes of
// four output rows each; the sums of these rows are one register, too.
//
// K is a kind of weight:
//   X, Sum, Four          elements of x, of sums, and a register of sums
//   none()                sums of nothing
//   dot<j>(sum, w, x)     sum[i] + the product of w's 4 bytes i and x's 4 bytes j
//   two(sum, x, w)        sum[2i + j] + the products of x's 8 bytes i and w's 8 bytes j, 4 bytes after
//                         the other; so a sum has the bits that dot gives it
//   store(sums, v)
#pragma once

#include "gemm_rows.h"

namespace quire::QUIRE_ISA {
namespace {

inline int8x16_t bytes_of(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }

// Sums of R rows and one tile; K's `dot` takes 16 bytes of each row at a time.
template <class K, int R>
struct DotSums {
  typename K::Four of[R][4];

  void clear() {
    QUIRE_UNROLL for (auto& row : of) {
      QUIRE_UNROLL for (auto& four : row) four = K::none();
    }
  }
  template <int j>
  void add_line(const int8x16_t (&x)[R], const uint8_t* line) {
    QUIRE_UNROLL for (int v = 0; v < 4; ++v) {
      const int8x16_t w = bytes_of(line + v * 16);
      QUIRE_UNROLL for (int r = 0; r < R; ++r) of[r][v] = K::template dot<j>(of[r][v], w, x[r]);
    }
  }
  // 64 bytes of each row, `stride` bytes apart, and the tile's 16 lines.
  void add_tile(const uint8_t* x, int64_t stride, const uint8_t* line, int64_t ahead) {
    for (int quarter = 0; quarter < 4; ++quarter, x += 16, line += 256) {
      int8x16_t rows[R];
      QUIRE_UNROLL for (int r = 0; r < R; ++r) rows[r] = bytes_of(x + r * stride);
      QUIRE_UNROLL for (int i = 0; i < 4; ++i) fetch(line + i * 64, ahead);
      add_line<0>(rows, line);
      add_line<1>(rows, line + 64);
      add_line<2>(rows, line + 128);
      add_line<3>(rows, line + 192);
    }
  }
  void put(typename K::Sum* sums) const {
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL for (int v = 0; v < 4; ++v) K::store(sums + r * kBlockRows + v * 4, of[r][v]);
    }
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)

// The same by K's `two`, which takes 8 bytes of two rows at a time.
template <class K, int R>
struct PairSums {
  static constexpr int kPairs = (R + 1) / 2;
  typename K::Four of[kPairs][8];

  void clear() {
    QUIRE_UNROLL for (auto& pair : of) {
      QUIRE_UNROLL for (auto& four : pair) four = K::none();
    }
  }
  void add_tile(const uint8_t* x, int64_t stride, const uint8_t* line, int64_t ahead) {
    for (int eighth = 0; eighth < 8; ++eighth, x += 8, line += 128) {
      int8x16_t rows[kPairs];
      QUIRE_UNROLL for (int p = 0; p < kPairs; ++p) {
        rows[p] = both(x + 2 * p * stride, 2 * p + 1 < R ? stride : 0);
      }
      fetch(line, ahead);
      fetch(line + 64, ahead);
      QUIRE_UNROLL for (int v = 0; v < 4; ++v) {
        const int32x4_t a = vreinterpretq_s32_s8(bytes_of(line + v * 16));
        const int32x4_t b = vreinterpretq_s32_s8(bytes_of(line + v * 16 + 64));
        const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        const int8x16_t high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
        QUIRE_UNROLL for (int p = 0; p < kPairs; ++p) {
          of[p][2 * v] = K::two(of[p][2 * v], rows[p], low);
          of[p][2 * v + 1] = K::two(of[p][2 * v + 1], rows[p], high);
        }
      }
    }
  }
  void put(typename K::Sum* sums) const {
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL for (int v = 0; v < 4; ++v) {
        const auto low = vreinterpretq_s64(of[r / 2][2 * v]), high = vreinterpretq_s64(of[r / 2][2 * v + 1]);
        const int64x2_t four = r % 2 == 0 ? vzip1q_s64(low, high) : vzip2q_s64(low, high);
        __builtin_memcpy(sums + r * kBlockRows + v * 4, &four, sizeof four);
      }
    }
  }

 private:
  // 8 bytes of two rows.
  static int8x16_t both(const uint8_t* x, int64_t stride) {
    const auto* p = reinterpret_cast<const int8_t*>(x);
    return vcombine_s8(vld1_s8(p), vld1_s8(p + stride));
  }
  static int64x2_t vreinterpretq_s64(int32x4_t v) { return vreinterpretq_s64_s32(v); }
  static int64x2_t vreinterpretq_s64(float32x4_t v) { return vreinterpretq_s64_f32(v); }
};

template <class K, int R>
struct Sums : PairSums<K, R> {};
template <class K>
struct Sums<K, 1> : DotSums<K, 1> {};

#else

template <class K, int R>
struct Sums : DotSums<K, R> {};

#endif

// sums[R][32] of R rows and a block. The sums of one tile are in registers, those of the other in memory.
template <class K, int R>
QUIRE_PASS void neon_block(typename K::Sum* sums, const Pass<typename K::X>& p) {
  constexpr int64_t kBytes = sizeof(typename K::X);
  Sums<K, R> tiles[2];
  tiles[0].clear();
  tiles[1].clear();
  const auto* x = reinterpret_cast<const uint8_t*>(p.x);
  const uint8_t* const end = x + p.k * kBytes;
  const uint8_t* line = p.weight;
  for (; x < end; x += kStepBytes) {
    for (Sums<K, R>& tile : tiles) {
      Sums<K, R> now = tile;
      now.add_tile(x, p.stride * kBytes, line, p.ahead);
      tile = now;
      line += kTileBytes;
    }
  }
  tiles[0].put(sums);
  tiles[1].put(sums + 16);
}

#if defined(__ARM_FEATURE_DOTPROD)

struct S8Kind {
  using X = int8_t;
  using Sum = int32_t;
  using Four = int32x4_t;
  static Four none() { return vdupq_n_s32(0); }
  template <int j>
  static Four dot(Four sum, int8x16_t w, int8x16_t x) {
    return vdotq_laneq_s32(sum, w, x, j);
  }
#if defined(__ARM_FEATURE_MATMUL_INT8)
  static Four two(Four sum, int8x16_t x, int8x16_t w) { return vmmlaq_s32(sum, x, w); }
#endif
  static void store(int32_t* p, Four v) { vst1q_s32(p, v); }
};

#endif

#if defined(QUIRE_NEON_BF16)

struct BF16Kind {
  using X = bf16;
  using Sum = float;
  using Four = float32x4_t;
  static Four none() { return vdupq_n_f32(0.0f); }
  template <int j>
  static Four dot(Four sum, int8x16_t w, int8x16_t x) {
    return vbfdotq_laneq_f32(sum, vreinterpretq_bf16_s8(w), vreinterpretq_bf16_s8(x), j);
  }
  static Four two(Four sum, int8x16_t x, int8x16_t w) {
    return vbfmmlaq_f32(sum, vreinterpretq_bf16_s8(x), vreinterpretq_bf16_s8(w));
  }
  static void store(float* p, Four v) { vst1q_f32(p, v); }
};

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
