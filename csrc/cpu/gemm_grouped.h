// GEMM of weights in groups and int8 rows of x (W4A8 and similar), without tiles.
//
// The products of a group are summed exactly in int32; groups are added in float32, in ascending
// order. So every ISA with fused multiply-add gives the same bits, tiles included.
#pragma once

#include "grouped_parts.h"

#define QUIRE_INLINE __attribute__((always_inline))
#define QUIRE_UNROLL _Pragma("GCC unroll 16")

namespace quire::QUIRE_ISA {

namespace {

// Into L2; with AVX-512 and without VNNI, into L1.
inline void fetch(const uint8_t* line) { __builtin_prefetch(line, 0, kZen || kLanes == 8 ? 2 : 3); }

inline int32_t four(const int8_t* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// body<j>() for the four columns 4j … 4j + 3 of a step, j from 0 to 3.
template <class Body>
QUIRE_INLINE inline void each_pair(const Body& body) {
  body.template operator()<0>();
  body.template operator()<1>();
  body.template operator()<2>();
  body.template operator()<3>();
}

// Dots<C, R>: sums of products of R rows of x, `stride` bytes apart, and kLanes columns of either tile.
//   add(codes, x, stride, lines)   those of a step
//   of(r, t)                       those of row r and tile t
#if defined(__AVX512VNNI__)

constexpr int kMostRows = 8;  // their sums of groups in registers, what these add up to in the L1 cache
using Ints = __m512i;
inline Ints ints(int32_t v) { return _mm512_set1_epi32(v); }
inline Vec floats(Ints v) { return _mm512_cvtepi32_ps(v); }

template <class C, int R>
struct Dots {
  static constexpr int kChains = R == 1 ? 4 : R <= 3 ? 2 : 1;  // vpdpbusd takes four cycles
  Ints sums[kChains][R][2];

  QUIRE_INLINE void begin(int r, int32_t start) {
    sums[0][r][0] = sums[0][r][1] = ints(start);
    QUIRE_UNROLL for (int h = 1; h < kChains; ++h) sums[h][r][0] = sums[h][r][1] = _mm512_setzero_si512();
  }
  QUIRE_INLINE void add(const C& codes, const int8_t* x, int64_t stride, const uint8_t* lines) {
    each_pair([&]<int j>() QUIRE_INLINE {
      const Pair p = codes.template pair<j>(lines);
      auto& chain = sums[j % kChains];
      for (int r = 0; r < R; ++r) {
        const Ints v = ints(four(x + r * stride + 4 * j));
        chain[r][0] = _mm512_dpbusd_epi32(chain[r][0], reinterpret_cast<Ints>(p.low), v);
        chain[r][1] = _mm512_dpbusd_epi32(chain[r][1], reinterpret_cast<Ints>(p.high), v);
      }
    });
  }
  QUIRE_INLINE Ints of(int r, int t) const {
    Ints sum = sums[0][r][t];
    QUIRE_UNROLL for (int h = 1; h < kChains; ++h) sum = _mm512_add_epi32(sum, sums[h][r][t]);
    return sum;
  }
};

#elif defined(QUIRE_NEON) && defined(__ARM_FEATURE_DOTPROD)

constexpr int kMostRows = 6;
using Ints = int32x4_t;
inline Ints ints(int32_t v) { return vdupq_n_s32(v); }

template <class C, int R>
struct Dots {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr bool kShifted = false;  // products of unsigned and signed bytes
#else
  static constexpr bool kShifted = C::kLargest > 127;  // 128 less than a code is a signed byte
#endif
  Ints sums[R][2], x_sums[R];

  QUIRE_INLINE void begin(int r, int32_t start) {
    sums[r][0] = sums[r][1] = ints(start);
    x_sums[r] = ints(0);
  }
  template <int j>
  QUIRE_INLINE static Ints dot(Ints sum, Words q, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_laneq_s32(sum, reinterpret_cast<uint8x16_t>(q), x, j);
#else
    const Words w = kShifted ? q ^ 0x8080 : q;
    return vdotq_laneq_s32(sum, reinterpret_cast<int8x16_t>(w), x, j);
#endif
  }
  QUIRE_INLINE void add(const C& codes, const int8_t* x, int64_t stride, const uint8_t* lines) {
    int8x16_t rows[R];
    QUIRE_UNROLL for (int r = 0; r < R; ++r) rows[r] = vld1q_s8(x + r * stride);
    if constexpr (kShifted) {
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        x_sums[r] = vdotq_s32(x_sums[r], rows[r], vdupq_n_s8(1));
      }
    }
    each_pair([&]<int j>() QUIRE_INLINE {
      const Pair p = codes.template pair<j>(lines);
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        sums[r][0] = dot<j>(sums[r][0], p.low, rows[r]);
        sums[r][1] = dot<j>(sums[r][1], p.high, rows[r]);
      }
    });
  }
  QUIRE_INLINE Ints of(int r, int t) const {
    if constexpr (!kShifted) return sums[r][t];
    return vaddq_s32(sums[r][t], vdupq_n_s32(vaddvq_s32(x_sums[r]) * 128));
  }
};

#else

#if defined(__AVX512BW__)
constexpr int kMostRows = 6;
using Ints = __m512i;
using Shorts = __m512i;
inline Ints ints(int32_t v) { return _mm512_set1_epi32(v); }
inline Vec floats(Ints v) { return _mm512_cvtepi32_ps(v); }
inline Shorts pairs_of(Words q, Ints x) {
  return _mm512_maddubs_epi16(reinterpret_cast<Ints>(q), x);
}
inline Shorts add16(Shorts a, Shorts b) { return _mm512_add_epi16(a, b); }
inline Ints add_pairs(Ints sum, Shorts v) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(v, _mm512_set1_epi16(1)));
}
inline Ints add_products(Ints sum, Words q, Shorts x) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(reinterpret_cast<Ints>(q), x));
}
inline Shorts even_of(Ints x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
inline Shorts odd_of(Ints x) { return _mm512_srai_epi16(x, 8); }
#elif defined(__AVX2__)
constexpr int kMostRows = 4;
using Ints = __m256i;
using Shorts = __m256i;
inline Ints ints(int32_t v) { return _mm256_set1_epi32(v); }
inline Vec floats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Shorts pairs_of(Words q, Ints x) {
  return _mm256_maddubs_epi16(reinterpret_cast<Ints>(q), x);
}
inline Shorts add16(Shorts a, Shorts b) { return _mm256_add_epi16(a, b); }
inline Ints add_pairs(Ints sum, Shorts v) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(v, _mm256_set1_epi16(1)));
}
inline Ints add_products(Ints sum, Words q, Shorts x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(reinterpret_cast<Ints>(q), x));
}
inline Shorts even_of(Ints x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
inline Shorts odd_of(Ints x) { return _mm256_srai_epi16(x, 8); }
#else
constexpr int kMostRows = 4;
typedef int32_t Ints __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(16)));
inline Ints ints(int32_t v) { return Ints{v, v, v, v}; }
#if !defined(QUIRE_NEON)
inline Vec floats(Ints v) { return __builtin_convertvector(v, Vec); }
#endif
inline Shorts even_of(Ints x) { return reinterpret_cast<Shorts>(x) << 8 >> 8; }
inline Shorts odd_of(Ints x) { return reinterpret_cast<Shorts>(x) >> 8; }
inline Shorts products(Words q, Shorts x) { return reinterpret_cast<Shorts>(q) * x; }
inline Shorts pairs_of(Words q, Ints x) {
  return products(q & 255, even_of(x)) + products(q >> 8, odd_of(x));
}
inline Shorts add16(Shorts a, Shorts b) { return a + b; }
inline Ints add_pairs(Ints sum, Shorts v) {
  const Ints both = reinterpret_cast<Ints>(v);
  return sum + (both << 16 >> 16) + (both >> 16);
}
inline Ints add_products(Ints sum, Words q, Shorts x) { return add_pairs(sum, products(q, x)); }
#endif

template <class C, int R>
struct Dots {
  // So many pairs of products have a sum of 16 bits; 0: not even one has.
  static constexpr int kFit = 32767 / (2 * 127 * C::kLargest), kSpan = kFit < 4 ? kFit : 4;
  static constexpr int kEvery = kSpan == 0 ? 1 : kSpan;
  Ints sums[R][2];

  QUIRE_INLINE void begin(int r, int32_t start) { sums[r][0] = sums[r][1] = ints(start); }
  QUIRE_INLINE void add(const C& codes, const int8_t* x, int64_t stride, const uint8_t* lines) {
    Shorts some[R][2];
    each_pair([&]<int j>() QUIRE_INLINE {
      const Pair p = codes.template pair<j>(lines);
      for (int r = 0; r < R; ++r) {
        const Ints v = ints(four(x + r * stride + 4 * j));
        if constexpr (kSpan == 0) {
          const Shorts even = even_of(v), odd = odd_of(v);
          sums[r][0] = add_products(add_products(sums[r][0], p.low & 255, even), p.low >> 8, odd);
          sums[r][1] = add_products(add_products(sums[r][1], p.high & 255, even), p.high >> 8, odd);
        } else {
          const bool first = j % kEvery == 0;
          const Shorts low = pairs_of(p.low, v), high = pairs_of(p.high, v);
          some[r][0] = first ? low : add16(some[r][0], low);
          some[r][1] = first ? high : add16(some[r][1], high);
        }
      }
      if constexpr (kSpan != 0 && (j + 1) % kEvery == 0) {
        for (int r = 0; r < R; ++r) {
          for (int t = 0; t < 2; ++t) sums[r][t] = add_pairs(sums[r][t], some[r][t]);
        }
      }
    });
  }
  QUIRE_INLINE Ints of(int r, int t) const { return sums[r][t]; }
};

#endif

// sums[R][32] of the rows from `first` on and a block. Not inlined, and unrolled by hand: else the
// compiler puts sums on the stack.
template <class C, int R>
__attribute__((noinline)) void block(const GemmArgs& a, const GroupedX& x, int64_t first,
                                     const uint8_t* weight, float* sums) {
  constexpr int64_t kParts = 16 / kLanes, kPartBytes = kLanes * 4;  // of a line
  // So that they share x, and with NEON for more chains of sums.
  constexpr int64_t kAtOnce = R == 1 && (kLanes == 8 || kNeon) ? kParts : 1;
  const C codes(a);
  const int64_t ahead = tuned(a.tuning.ahead_bytes, R == 1 ? kFewRowsAhead : kStreamAhead);
  const int64_t head = head_bytes(a), bytes = group_bytes<C>(a);
  const int8_t* q = x.q + first * x.stride;
  const int32_t* start = x.start + first * x.groups;
  const float* x_sum = x.sum + first * x.groups;
  Vec total[kParts][R][2];
  for (auto& lanes : total) {
    for (auto& row : lanes) row[0] = row[1] = zero();
  }
  for (int64_t g = 0; g < x.groups; ++g, q += a.group, ++start, ++x_sum, weight += bytes) {
    for (int64_t line = 0; line < head; line += 64) fetch(weight + line + ahead);
    for (int64_t part = 0; part < kParts; part += kAtOnce) {
      Dots<C, R> dots[kAtOnce];
      for (Dots<C, R>& d : dots) {
        QUIRE_UNROLL for (int r = 0; r < R; ++r) d.begin(r, start[r * x.groups]);
      }
      const uint8_t* lines = weight + head + part * kPartBytes;
      for (int64_t i = 0; i < a.group; i += kCodeStep, lines += C::kLines * 64) {
        for (int line = 0; line < C::kLines; ++line) fetch(lines + line * 64 + ahead);
        QUIRE_UNROLL for (int h = 0; h < kAtOnce; ++h) {
          dots[h].add(codes, q + i, x.stride, lines + h * kPartBytes);
        }
      }
      QUIRE_UNROLL for (int h = 0; h < kAtOnce; ++h) {
        QUIRE_UNROLL for (int t = 0; t < 2; ++t) {
          const GroupEnd end(a, weight, t * 16 + (part + h) * kLanes);
          QUIRE_UNROLL for (int r = 0; r < R; ++r) {
            Vec& sum = total[part + h][r][t];
            sum = end.add_products(sum, floats(dots[h].of(r, t)));
          }
          if (a.second == kNoSecond) continue;
          QUIRE_UNROLL for (int r = 0; r < R; ++r) {
            Vec& sum = total[part + h][r][t];
            sum = end.add_offset(sum, x_sum[r * x.groups]);
          }
        }
      }
    }
  }
  for (int64_t lane = 0; lane < 16; lane += kLanes) {
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      QUIRE_UNROLL for (int t = 0; t < 2; ++t) {
        store(sums + r * kBlockRows + t * 16 + lane, total[lane / kLanes][r][t]);
      }
    }
  }
}

// block<rows>, 1 <= rows <= R.
template <class C, int R>
inline void block_of(int64_t rows, const GemmArgs& a, const GroupedX& x, int64_t r,
                     const uint8_t* weight, float* sums) {
  if constexpr (R > 1) {
    if (rows < R) return block_of<C, R - 1>(rows, a, x, r, weight, sums);
  }
  block<C, R>(a, x, r, weight, sums);
}

inline int64_t grouped_scratch_bytes(const GemmArgs& a) { return GroupedX(a).bytes; }

inline int64_t grouped_prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }

inline void grouped_prepare(const GemmArgs& a, int64_t index) {
  const GroupedX x(a);
  const int64_t last = smaller(a.rows, (index + 1) * kPrepareRows);
  for (int64_t r = index * kPrepareRows; r < last; ++r) {
    int8_t* q = x.q + r * x.stride;
    if (a.permutation == nullptr) {
      x.scale[r] = quantize_row(a, r, q, kStepBytes);
    } else {
      const int8_t* from = x.unordered + index * x.stride;
      x.scale[r] = quantize_row(a, r, x.unordered + index * x.stride, kStepBytes);
      for (int64_t i = 0; i < a.k; ++i) q[i] = from[a.permutation[i]];
    }
    for (int64_t i = a.k; i < x.groups * a.group; ++i) q[i] = 0;
    for (int64_t g = 0; g < x.groups; ++g, q += a.group) {
      int32_t sum = 0;
      for (int64_t i = 0; i < a.group; ++i) sum += q[i];
      x.start[r * x.groups + g] = -a.zero * sum;
      x.sum[r * x.groups + g] = static_cast<float>(sum);
    }
  }
}

template <class C>
int64_t grouped_tasks(const GemmArgs& a) {
  if (a.rows == 0) return 0;
  const GroupedCut<C> cut(a);
  return cut.parts * cut.chunks;
}

template <class C>
void grouped_task(const GemmArgs& a, int64_t index) {
  const GroupedTask<C> task(a, index);
  const GroupedX x(a);
  const int64_t most = smaller(tuned(a.tuning.pass_rows, kMostRows), kMostRows);
  const uint8_t* weight = task.weight;
  alignas(64) float sums[kMostRows * kBlockRows];
  for (int64_t n0 = task.from; n0 < task.to; n0 += kBlockRows, weight += block_bytes<C>(a)) {
    for (int64_t r = task.first; r < task.last;) {
      const int64_t rows = ceil_div(task.last - r, ceil_div(task.last - r, most));  // evenly
      block_of<C, kMostRows>(rows, a, x, r, weight, sums);
      grouped_finish(a, x, r, rows, n0, sums);
      r += rows;
    }
  }
}

template <class C>
constexpr Gemm kGrouped = {grouped_scratch_bytes, grouped_prepare_tasks, grouped_prepare,
                           grouped_tasks<C>, grouped_task<C>};

}  // namespace
}  // namespace quire::QUIRE_ISA
