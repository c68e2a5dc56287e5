// The running softmax of a tile of query rows, in floats, for the vector kernels.
#pragma once

#include "attention_keys.h"
#include "attention_parts.h"
#include "simd_math.h"

// Loops over accumulators, which GCC 12 would otherwise keep in memory.
#define QUIRE_UNROLL _Pragma("GCC unroll 16")

namespace quire::QUIRE_ISA {
namespace {

template <class T>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<bf16> = true;

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

template <class T>
constexpr bool kIsInt8 = false;
template <>
constexpr bool kIsInt8<int8_t> = true;

template <class T>
constexpr bool kIsInt16 = false;
template <>
constexpr bool kIsInt16<int16_t> = true;

constexpr int kWidth = kAttentionHeadDim;
constexpr int kGroup = static_cast<int>(kLanes);  // keys whose dot products are reduced together
constexpr float kNothing = -1e30f;  // `top` of a row without keys: exp2(kNothing - x) is 0
static_assert(kKeys % (2 * kLanes) == 0 && kAttentionPartition % kKeys == 0);

// The groups of keys that contain a tile's keys: [begin, end).
template <class T>
int first_group(const Keys<T>& keys) {
  return keys.first / kGroup * kGroup;
}
template <class T>
int end_group(const Keys<T>& keys) {
  return (keys.last + kGroup - 1) / kGroup * kGroup;
}

// Head sizes are multiples of 8: only a vector of more lanes can pass the end of a head.
constexpr bool kTails = kLanes > 8;

// Default number of rows from which keys and values are converted once for all of them.
constexpr int kTall = 12;
constexpr int64_t kTallColumns = 64;  // columns of values that all rows of such a tile use while in cache

struct Rows {
  const AttentionArgs& args;
  int heads;         // heads that are computed together; their rows follow each other
  int count;         // rows of a head
  int group;         // heads per position
  int64_t position;  // position of row 0
  int64_t dim;
  int64_t ahead;  // tokens that a row sees after its own
  int64_t last;   // last position of the sequence

  int total() const { return heads * count; }
  // The keys that row r of a head sees: [low, high].
  int64_t low(int r) const { return attention_first(args, position + r / group); }
  int64_t high(int r) const {
    const int64_t furthest = position + r / group + ahead;
    return furthest < last ? furthest : last;
  }
};

// A partial result of softmax(s) v, s in units of log 2: acc / sum, both times 2^-top.
struct State {
  float top[kAttentionRows];
  float sum[kAttentionRows];
  alignas(64) float acc[kAttentionRows * kWidth];
};

// Sums of the weighted values of some rows.
struct Sums {
  float* acc;
  int32_t* whole;      // integer sums, while a tile's keys come in runs
  const float* keep;   // per row, the factor of acc before the tile
  const float* worth;  // per row, the factor of its products
};

inline float exp2(float x) { return largest(exp2(broadcast(x))); }

QUIRE_ONCE inline void clear(const Rows& rows, State& state) {
  for (int r = 0; r < rows.total(); ++r) {
    state.top[r] = kNothing;
    state.sum[r] = 0.0f;
  }
  __builtin_memset(state.acc, 0, sizeof(float) * kWidth * static_cast<uint64_t>(rows.total()));
}

// Replaces the scores s of the groups of keys [begin, end) by tanh(scale · s).
QUIRE_ONCE inline void cap_scores(float* scores, int begin, int end, float scale) {
  for (int j = begin; j < end; j += kGroup) {
    store(scores + j, tanh(mul(load(scores + j), broadcast(scale))));
  }
}

// Hides the scores of keys outside [low, high] among those of groups [begin, end).
QUIRE_ONCE inline void hide(float* scores, int begin, int end, int64_t low, int64_t high) {
  const float hidden = -__builtin_inff();
  for (int j = begin; j < end; j += kGroup) {
    if (j >= low && j + kGroup - 1 <= high) continue;
    if (j + kGroup <= low || j > high) {
      store(scores + j, broadcast(hidden));
      continue;
    }
    for (int i = j; i < j + kGroup; ++i) {
      if (i < low || i > high) scores[i] = hidden;
    }
  }
}

// Turns the scores of R rows and the groups of keys [begin, end) into weights. Updates `top` and `sum`,
// and sets `keep` to the factor of earlier weights. Rows are interleaved, because each has a long
// latency.
template <int R>
QUIRE_ONCE void weigh(float* scores, int begin, int end, const float* scale, float* top_,
                      float* sum_, float* keep) {
  Vec m[R], total[R], factor[R], shift[R];
  for (int r = 0; r < R; ++r) m[r] = load(scores + r * kKeys + begin);
  for (int j = begin + kGroup; j < end; j += kGroup) {
    for (int r = 0; r < R; ++r) m[r] = max(m[r], load(scores + r * kKeys + j));
  }
  for (int r = 0; r < R; ++r) {
    const float seen = largest(m[r]) * scale[r];
    const float new_top = seen > top_[r] ? seen : top_[r];
    keep[r] = top_[r] - new_top;
    top_[r] = new_top;
    factor[r] = broadcast(scale[r]);
    shift[r] = broadcast(-new_top);
    total[r] = zero();
  }
  for (int j = begin; j < end; j += kGroup) {
    for (int r = 0; r < R; ++r) {
      float* const s = scores + r * kKeys + j;
      const Vec weight = exp2(fma(load(s), factor[r], shift[r]));
      store(s, weight);
      total[r] = add(total[r], weight);
    }
  }
  for (int r = 0; r < R; ++r) {
    keep[r] = exp2(keep[r]);
    sum_[r] = sum_[r] * keep[r] + sum(total[r]);
  }
}

// Adds a partial result to the total. An empty one on either side changes nothing.
QUIRE_ONCE inline void merge(const Rows& rows, State& total, const State& part) {
  for (int r = 0; r < rows.total(); ++r) {
    const float new_top = total.top[r] > part.top[r] ? total.top[r] : part.top[r];
    const float old_scale = exp2(total.top[r] - new_top), scale = exp2(part.top[r] - new_top);
    total.top[r] = new_top;
    total.sum[r] = total.sum[r] * old_scale + part.sum[r] * scale;
    for (int64_t d = 0; d < rows.dim; d += kLanes) {
      float* acc = total.acc + r * kWidth + d;
      const Vec added = mul(load(part.acc + r * kWidth + d), broadcast(scale));
      store(acc, add(mul(load(acc), broadcast(old_scale)), added));
    }
  }
}

// Stores a partial result as plain floats, and loads it.
QUIRE_ONCE inline void save(const Rows& rows, const State& state, float* to) {
  const int64_t width = (rows.dim + 15) / 16 * 16;
  for (int r = 0; r < rows.total(); ++r, to += width + 2) {
    to[0] = state.top[r];
    to[1] = state.sum[r];
    __builtin_memcpy(to + 2, state.acc + r * kWidth, sizeof(float) * static_cast<uint64_t>(rows.dim));
  }
}
QUIRE_ONCE inline void restore(const Rows& rows, const float* from, State& state) {
  const int64_t width = (rows.dim + 15) / 16 * 16;
  for (int r = 0; r < rows.total(); ++r, from += width + 2) {
    state.top[r] = from[0];
    state.sum[r] = from[1];
    __builtin_memcpy(state.acc + r * kWidth, from + 2,
                     sizeof(float) * static_cast<uint64_t>(rows.dim));
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
