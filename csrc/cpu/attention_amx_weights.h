// Attention on AMX tiles: scores to weights.
//
// A slab's scores are [keys][P], with P rows as lanes: a vector holds 16 / P keys. Sums have one order
// whatever P is: of 32 keys neighbours are added, then neighbouring pairs, and so on.
#pragma once

#include "attention_amx.h"

// Loops over registers, which GCC 12 would otherwise keep in memory.
#define QUIRE_UNROLL _Pragma("GCC unroll 16")

namespace quire::QUIRE_ISA {
namespace {

// 2^x, with a relative error of 2^-18: weights are rounded to 8 bits. Results below 2^-126 are 0, so -inf
// gives 0; NaN stays NaN. 2^0 is exactly 1. A polynomial of the fraction, times 2^floor(x).
inline Vec exp2_weight(Vec x) {
  const Vec f = above_floor(x);
  Vec p = broadcast(0x1.b7f734p-7f);
  p = fma(p, f, broadcast(0x1.abf868p-5f));
  p = fma(p, f, broadcast(0x1.ee2452p-3f));
  p = fma(p, f, broadcast(0x1.62d6c6p-1f));
  p = fma(p, f, broadcast(1.0f));
  // Subnormal results would take a hundred times as long.
  const __mmask16 normal = _mm512_cmp_ps_mask(x, broadcast(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, x);
}

// The numbers of the keys that a vector of lanes holds, from the first on.
template <int P>
inline __m512i keys_of_lanes() {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_srli_epi32(lane, __builtin_ctz(P));
}

// The scales, one per key, for the lanes of vector i.
template <int P>
inline Vec scales_of(const float* scales, int i) {
  if constexpr (P == kSide) return broadcast(scales[i]);
  return _mm512_permutexvar_ps(keys_of_lanes<P>(), load(scales + i * kSide / P));
}

// Integer sums to floats, and scores to what the scales of the keys make of them.
template <int P, bool Whole>
QUIRE_ONCE void scale_scores(float* scores, const int32_t* lower, const Scales& scales, int begin,
                             int end) {
  for (int i = begin; i < end; ++i) {
    float* const s = scores + i * kSide;
    Vec x = load(s);
    if constexpr (Whole) {
      const __m512i upper = _mm512_slli_epi32(_mm512_castps_si512(x), 8);
      x = _mm512_cvtepi32_ps(_mm512_add_epi32(upper, _mm512_load_si512(lower + i * kSide)));
    }
    store(s, mul(x, scales_of<P>(scales.k, i)));
  }
}

// Replaces the scores s by tanh(factor · s).
QUIRE_ONCE inline void cap_scores(float* scores, Vec factor, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    store(scores + i * kSide, tanh(mul(load(scores + i * kSide), factor)));
  }
}

// Hides the keys of vectors [begin, end) that the lanes' rows may not see.
template <int P, class T>
QUIRE_ONCE void hide(const Work& w, int slab, float* scores, int64_t start, const Keys<T>& keys, int begin,
                     int end) {
  const int first = static_cast<int>(start), rows = w.few() ? 0 : slab * kSide;
  const __m512i origin = _mm512_set1_epi32(first);
  const __m512i at = _mm512_sub_epi32(_mm512_load_si512(w.at + rows), origin);
  const __m512i high = _mm512_min_epi32(_mm512_add_epi32(at, _mm512_set1_epi32(w.ahead)),
                                        _mm512_set1_epi32(w.last - first));
  const __m512i low = _mm512_sub_epi32(_mm512_load_si512(w.first + rows), origin);
  const int lowest = _mm512_reduce_min_epi32(high), highest = _mm512_reduce_max_epi32(low);
  const int computed = (keys.last + kSide - 1) / kSide * kSide;
  const int begun = keys.first / kSide * kSide;
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  const int all = end * kSide / P - 1;
  if (all <= lowest && all < computed && begin * kSide / P >= highest && keys.first == 0) return;
  for (int i = begin; i < end; ++i) {
    const int j = i * kSide / P, last = j + kSide / P - 1;
    if (last <= lowest && j >= highest && j >= begun && last < computed) continue;
    const __m512i key = _mm512_add_epi32(_mm512_set1_epi32(j), keys_of_lanes<P>());
    const __mmask16 seen =
        _mm512_cmple_epi32_mask(key, high) & _mm512_cmpge_epi32_mask(key, low);
    float* const s = scores + i * kSide;
    _mm512_store_ps(s, _mm512_mask_mov_ps(hidden, seen, _mm512_load_ps(s)));
  }
}

// Folds the keys of a vector together, by `both` of two vectors, so that all lanes of a row agree.
template <int P, class Both>
inline Vec fold_keys(Vec x, const Both& both) {
  if constexpr (P <= 8) x = both(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  if constexpr (P <= 4) x = both(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  if constexpr (P <= 2) x = both(x, _mm512_permute_ps(x, 0x4e));
  if constexpr (P <= 1) x = both(x, _mm512_permute_ps(x, 0xb1));
  return x;
}

// The row maxima of vectors [begin, end).
template <int P>
inline Vec row_maxima(const float* scores, int begin, int end) {
  constexpr int kAtOnce = P == 1 ? 2 : 4;
  Vec m[kAtOnce];
  for (int n = 0; n < kAtOnce; ++n) m[n] = broadcast(-__builtin_inff());
  for (int i = begin; i < end; i += kAtOnce) {
    for (int n = 0; n < kAtOnce; ++n) m[n] = max(load(scores + (i + n) * kSide), m[n]);
  }
  for (int n = 1; n < kAtOnce; ++n) m[0] = max(m[0], m[n]);
  return fold_keys<P>(m[0], [](Vec a, Vec b) { return max(a, b); });
}

// A sum of 32 keys' weights in vectors of 16 / P keys, which come in ascending order.
template <int P>
struct Tree {
  static constexpr int kLevels = __builtin_ctz(2 * P) + 1;
  Vec parts[kLevels];

  // Adds vector i.
  void add(int i, Vec x) {
    constexpr auto both = [](Vec a, Vec b) { return QUIRE_ISA::add(a, b); };
    if constexpr (P <= 1) x = both(x, _mm512_permute_ps(x, 0xb1));
    if constexpr (P <= 2) x = both(x, _mm512_permute_ps(x, 0x4e));
    if constexpr (P <= 4) x = both(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    if constexpr (P <= 8) x = both(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    int level = 0;
    for (; i >> level & 1; ++level) x = both(parts[level], x);
    parts[level] = x;
  }
  Vec sum() const { return parts[kLevels - 1]; }
};

// A float whose upper half is x rounded to bfloat16, ties up: weights are not negative, and a NaN stays one.
inline __m512i round_up(Vec x) {
  return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

// The weights of 32 / P keys, in two vectors, to the rows of w.weights.
template <int P>
inline void put_weights(Vec x, Vec y, uint16_t* to) {
  struct Order {
    uint16_t at[32];
  };
  alignas(64) static constexpr Order kOrder = [] {
    Order order{};
    for (int r = 0; r < P; ++r) {
      for (int i = 0; i < 32 / P; ++i) {
        order.at[r * (32 / P) + i] = static_cast<uint16_t>(2 * (i * P + r) + 1);
      }
    }
    return order;
  }();
  alignas(64) uint16_t words[32];
  const __m512i order = _mm512_load_si512(kOrder.at);
  _mm512_store_si512(words, _mm512_permutex2var_epi16(round_up(x), order, round_up(y)));
  for (int r = 0; r < P; ++r) __builtin_memcpy(to + 32 * r, words + r * (32 / P), 64 / P);
}

struct Softmax {
  Vec factor, shift;  // of scores: weight = 2^(factor · s + shift)
  Vec keep;           // of earlier weights
};

// x rounded up to a multiple of 8.
inline Vec next_top(Vec x) {
  const Vec eighths = mul(x, broadcast(0.125f));
  return mul(_mm512_roundscale_ps(eighths, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC), broadcast(8.0f));
}

// Raises `top` to at least the maxima of vectors [begin, end), in steps of 8: so it seldom changes, and
// results shrink by a power of two, without rounding.
template <int P>
inline Softmax begin_weights(const float* scores, Vec factor, State& state, int slab, int begin, int end) {
  const Vec old_top = load(state.top + slab * kSide);
  const Vec new_top = max(next_top(mul(row_maxima<P>(scores, begin, end), factor)), old_top);
  store(state.top + slab * kSide, new_top);
  return {factor, sub(zero(), new_top), exp2(sub(old_top, new_top))};
}

template <int P>
inline void end_weights(const Work& w, const Softmax& softmax, Vec added, State& state, int slab) {
  float* const sum = state.sum + slab * kSide;
  store(sum, add(mul(load(sum), softmax.keep), added));
  if (state.empty) return;
  unsigned changed = _mm512_cmp_ps_mask(softmax.keep, broadcast(1.0f), _CMP_NEQ_UQ);
  changed &= (1u << w.rows_of(slab)) - 1;
  alignas(64) float factor[kSide];
  store(factor, softmax.keep);
  for (; changed != 0; changed &= changed - 1) {
    const int i = __builtin_ctz(changed);
    for (int d = 0; d < w.dim_tiles; ++d) {
      float* acc = state.acc[slab][d] + i * kSide;
      store(acc, mul(load(acc), broadcast(factor[i])));
    }
  }
}

// Scores of one slab to weights, over keys of steps [step, end).
template <int P>
QUIRE_ONCE void weigh(Work& w, int slab, float* scores, const Scales* scales, State& state, Vec factor,
                      int step, int end) {
  const Softmax softmax = begin_weights<P>(scores, factor, state, slab, 2 * P * step, 2 * P * end);
  Vec total = zero();
  for (; step < end; ++step) {
    Tree<P> sums;
    const auto weight = [&](int i) {
      const int at = 2 * P * step + i;
      const Vec x = exp2_weight(fma(load(scores + at * kSide), softmax.factor, softmax.shift));
      sums.add(i, x);
      return scales != nullptr ? mul(x, scales_of<P>(scales->v, at)) : x;
    };
    if constexpr (P == kSide) {
      __m512i pairs[kSide];
      QUIRE_UNROLL for (int i = 0; i < kSide; ++i) {
        const __m512i low = _mm512_srli_epi32(round_up(weight(2 * i)), 16);
        pairs[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, low, round_up(weight(2 * i + 1)));
      }
      transpose(pairs, w.weights[slab][step]);
    } else {
      auto* const to = reinterpret_cast<uint16_t*>(w.weights[slab][step]);
      QUIRE_UNROLL for (int i = 0; i < P; ++i) {
        const Vec x = weight(2 * i), y = weight(2 * i + 1);
        put_weights<P>(x, y, to + i * (32 / P));
      }
    }
    total = add(total, sums.sum());
  }
  end_weights<P>(w, softmax, total, state, slab);
}

// The same from what the products left at `place`.
template <int P, class T>
void weigh_tile(const AttentionArgs& a, Work& w, int slab, const Keys<T>& keys, const Scales* scales,
                int64_t start, State& state, int step, int end, int place) {
  const int from = 2 * P * step, to = 2 * P * end;
  float* const scores = w.scores[place];
  if (scales != nullptr) {
    scale_scores<P, kWholeNumbers<T>>(scores, w.lower[place], *scales, from, to);
  }
  const Scaling scaling(a);
  // A factor of 0 would make NaN of hidden scores.
  Vec factor = max(broadcast(0x1p-126f), mul(load(w.worth + slab * kSide), broadcast(scaling.scale)));
  if (scaling.cap > 0.0f) {
    cap_scores(scores, factor, from, to);
    factor = broadcast(scaling.cap);
  }
  hide<P>(w, slab, scores, start, keys, from, to);
  weigh<P>(w, slab, scores, scales, state, factor, step, end);
}

}  // namespace
}  // namespace quire::QUIRE_ISA
