// Products of attention for caches of 8-bit floats, with the instruction that multiplies pairs of
// bfloat16 (attention_pairs.h): codes are converted to bfloat16 when they are used, 64 at a time.
//
// Decoding separates the two halves of every 16 elements. So queries are put into the same order, and
// the columns of results are put back into the original order at the end.
#pragma once

#include "attention_pairs.h"

#if defined(QUIRE_PAIRS)

namespace quire::QUIRE_ISA {
namespace {

// Puts bfloat16 into the order of decoded elements: of 64, the first 8 of every 16, then the others.
struct Halved {
  uint16_t bits;
};

template <class T>
concept IsFloat8 = __is_same(T, f8_e4m3) || __is_same(T, f8_e5m2);

template <>
struct Pairs<Halved> : Pairs<bf16> {
  static __m512i load(const Halved* p) { return _mm512_loadu_si512(p); }
  // Of 64 columns: vector i has columns 4i … 4i + 3 of every 16.
  template <IsFloat8 F8>
  static void interleave(const F8* even_, const F8* odd_, __m512i* x) {
    const Float8Pairs<F8> pairs;
    const __m512i even = _mm512_loadu_si512(even_), odd = _mm512_loadu_si512(odd_);
    pairs.widen(_mm512_unpacklo_epi8(even, odd), x[0], x[1]);
    pairs.widen(_mm512_unpackhi_epi8(even, odd), x[2], x[3]);
  }
};
template <>
struct PairOf<f8_e4m3> {
  using Element = Halved;
};
template <>
struct PairOf<f8_e5m2> {
  using Element = Halved;
};
template <IsFloat8 F8>
constexpr int kInterleaved<F8> = 4;

inline float load_query(const bf16* from, int64_t dim, Halved* q) {
  for (int64_t d = 0; d < dim; d += 64) {
    for (int64_t i = 0; i < 64; i += 8) {
      __builtin_memcpy(q + d + i % 16 * 4 + i / 16 * 8, from + d + i, 16);
    }
  }
  return 1.0f;
}

QUIRE_ONCE inline float round_weights(const float* weights, int begin, int end, const Scales* scales,
                           Halved* to) {
  for (int j = begin; j < end; j += kGroup) {
    Vec w = load(weights + j);
    if (scales != nullptr) w = mul(w, load(scales->v + j));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(w)));
  }
  return 1.0f;
}

// scores[r][j] = q[r] . k[j], times the key's scale where there is one, for the groups of keys
// [begin, end).
template <int R, IsFloat8 F8>
void score(const Halved* q, const Keys<F8>& keys, const Scales* scales, Ahead& ahead, int begin,
           int end, float* scores) {
  const Float8Pairs<F8> pairs;
  using P = Pairs<Halved>;
  const int64_t dim = keys.dim;
  for (int j = begin; j < end; j += kGroup) {
    Vec folded[R][kGroup / 4];
    for (int i = 0; i < kGroup; i += 4) {
      ahead.fetch(ahead.pace);
      const F8* const k = keys.key(j + i);
      Vec s[R][4];
      for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();
      for (int64_t d = keys.has_block(j + i) ? 0 : dim; d < dim; d += 64) {
        for (int c = 0; c < 4; ++c) {
          __m512i x[2];
          pairs.widen(_mm512_loadu_si512(k + c * dim + d), x[0], x[1]);
          QUIRE_UNROLL for (int r = 0; r < R; ++r) {
            const Halved* const y = q + r * kWidth + d;
            s[r][c] = P::dot(P::dot(s[r][c], P::load(y), x[0]), P::load(y + 32), x[1]);
          }
        }
      }
      for (int r = 0; r < R; ++r) folded[r][i / 4] = fold(s[r]);
    }
    for (int r = 0; r < R; ++r) {
      const Vec score = join(folded[r]);
      store(scores + r * kKeys + j, scales != nullptr ? mul(score, load(scales->k + j)) : score);
    }
  }
}

// Reverses `interleave`: part i of vector c becomes part c of vector i.
inline void order_columns(float* acc, int64_t dim, const Halved*) {
  for (int64_t d = 0; d < dim; d += 64) {
    float* const at = acc + d;
    alignas(64) float ordered[64];
    for (int c = 0; c < 16; ++c) {
      __builtin_memcpy(ordered + c % 4 * 16 + c / 4 * 4, at + c * 4, 16);
    }
    __builtin_memcpy(at, ordered, sizeof ordered);
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA

#endif
