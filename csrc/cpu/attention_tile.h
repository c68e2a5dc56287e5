// The running softmax of a tile of query rows, in floats; for the kernels on vectors.
#pragma once

#include "attention_keys.h"
#include "attention_parts.h"
#include "simd_math.h"

namespace quire::QUIRE_ISA {
namespace {

template <class T>
constexpr bool kIsBfloat16 = false;
template <>
constexpr bool kIsBfloat16<bf16> = true;
template <class T>
constexpr bool kIsInt8 = false;
template <>
constexpr bool kIsInt8<int8_t> = true;

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

constexpr int kWidth = kAttentionHeadDim;
constexpr int kGroup = static_cast<int>(kLanes);  // keys whose dot products are reduced together
constexpr float kNothing = -1e30f;  // `top` of a row that has seen no key: exp2(kNothing - x) is 0
static_assert(kKeys % (2 * kLanes) == 0 && kAttentionPartition % kKeys == 0);

struct Rows {
  int count;
  int group;         // heads a position
  int64_t position;  // of row 0
  int64_t dim;

  int64_t at(int r) const { return position + r / group; }
};

// A partial result of softmax(s) v, s in units of log 2: acc / sum, both times 2^-top.
struct State {
  float top[kAttentionRows];
  float sum[kAttentionRows];
  alignas(64) float acc[kAttentionRows * kWidth];
};

inline float exp2(float x) { return largest(exp2(broadcast(x))); }

inline void clear(const Rows& rows, State& state) {
  for (int r = 0; r < rows.count; ++r) {
    state.top[r] = kNothing;
    state.sum[r] = 0.0f;
  }
  __builtin_memset(state.acc, 0, sizeof(float) * kWidth * static_cast<uint64_t>(rows.count));
}

// Scores of one row to weights: hides keys outside [low, high], raises `top`, and returns by what
// the earlier weights shrink.
inline float weigh(float* scores, int64_t low, int64_t high, float scale, float& top_, float& sum_) {
  const float hidden = -__builtin_inff();
  for (int64_t j = 0; j < low && j < kKeys; ++j) scores[j] = hidden;
  for (int64_t j = high + 1; j < kKeys; ++j) scores[j] = hidden;
  Vec m = load(scores);
  for (int j = kGroup; j < kKeys; j += kGroup) m = max(m, load(scores + j));
  const float seen = largest(m) * scale;
  const float new_top = seen > top_ ? seen : top_;
  const Vec s = broadcast(scale), shift = broadcast(-new_top);
  Vec total = zero();
  for (int j = 0; j < kKeys; j += kGroup) {
    const Vec weight = exp2(fma(load(scores + j), s, shift));
    store(scores + j, weight);
    total = add(total, weight);
  }
  const float keep = exp2(top_ - new_top);
  top_ = new_top;
  sum_ = sum_ * keep + sum(total);
  return keep;
}

// Adds a partial result to the total. An empty one on either side changes nothing.
inline void merge(const Rows& rows, State& total, const State& part) {
  for (int r = 0; r < rows.count; ++r) {
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

// A partial result to plain floats and back.
inline void save(const Rows& rows, const State& state, float* to) {
  const int64_t width = (rows.dim + 15) / 16 * 16;
  for (int r = 0; r < rows.count; ++r, to += width + 2) {
    to[0] = state.top[r];
    to[1] = state.sum[r];
    __builtin_memcpy(to + 2, state.acc + r * kWidth, sizeof(float) * static_cast<uint64_t>(rows.dim));
  }
}
inline void restore(const Rows& rows, const float* from, State& state) {
  const int64_t width = (rows.dim + 15) / 16 * 16;
  for (int r = 0; r < rows.count; ++r, from += width + 2) {
    state.top[r] = from[0];
    state.sum[r] = from[1];
    __builtin_memcpy(state.acc + r * kWidth, from + 2,
                     sizeof(float) * static_cast<uint64_t>(rows.dim));
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
