#include "quantize_codes.h"

#include "simd.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kMostGroup = 128;
constexpr int64_t kSums = 16;  // partial sums, value i in number i % 16: one order on every ISA
constexpr int kLines = 4;      // candidates
constexpr float kLargest = 0x1.fffffep127f;

// One Vec or several: 16 partial results. `of` is +, or the smaller or larger of two.
struct Partial {
  Vec v[kSums / kLanes];

  explicit Partial(float x = 0.0f) {
    for (Vec& part : v) part = broadcast(x);
  }
  template <class Of>
  float reduced(const Of& of) const {
    float x[kSums];
    for (int64_t j = 0; j < kSums; j += kLanes) store(x + j, v[j / kLanes]);
    for (int64_t half = kSums / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) x[j] = of(x[j], x[j + half]);
    }
    return x[0];
  }
  float sum() const {
    return reduced([](float a, float b) { return a + b; });
  }
};

// body(part, i) for the values i … i + kLanes - 1, part being the number of their partial sums.
template <class Body>
inline void each(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kSums) {
    for (int64_t j = 0; j < kSums / kLanes; ++j) body(j, i + j * kLanes);
  }
}

struct Line {
  float scale, offset;
};

inline Vec nearest(Vec w, Vec offset, Vec inverse, float most) {
  const Vec whole = broadcast(0x1.8p23f);  // added and subtracted: to the nearest integer
  const Vec q = sub(add(mul(sub(w, offset), inverse), whole), whole);
  return min(max(q, zero()), broadcast(most));
}

// The values of a group, `n` a multiple of kSums, in units in which they reach from -most / 2 to
// most / 2, and codes from 0 to most.
struct Group {
  alignas(64) float t[kMostGroup];
  int64_t n;
  float most, sum, squares;

  Group(const float* w, int64_t count, float largest, float middle, float per_unit)
      : n(count), most(largest) {
    Partial sums(0.0f), square_sums(0.0f);
    each(n, [&](int64_t j, int64_t i) {
      const Vec v = mul(sub(load(w + i), broadcast(middle)), broadcast(per_unit));
      store(t + i, v);
      sums.v[j] = add(sums.v[j], v);
      square_sums.v[j] = add(square_sums.v[j], mul(v, v));
    });
    sum = sums.sum();
    squares = square_sums.sum();
  }

  // For each of the lines: gives every value its nearest q; replaces the line by the best one for
  // these. Returns the squared errors.
  void fit(Line (&lines)[kLines], float (&errors)[kLines]) const {
    Partial sums[kLines], square_sums[kLines], products[kLines];
    float inverse[kLines];
    for (int l = 0; l < kLines; ++l) inverse[l] = 1.0f / lines[l].scale;
    each(n, [&](int64_t j, int64_t i) {
      const Vec v = load(t + i);
      for (int l = 0; l < kLines; ++l) {
        const Vec q = nearest(v, broadcast(lines[l].offset), broadcast(inverse[l]), most);
        sums[l].v[j] = add(sums[l].v[j], q);
        square_sums[l].v[j] = add(square_sums[l].v[j], mul(q, q));
        products[l].v[j] = add(products[l].v[j], mul(q, v));
      }
    });
    const float count = static_cast<float>(n), mean = sum / count;
    for (int l = 0; l < kLines; ++l) {
      const float q_mean = sums[l].sum() / count;
      const float spread = square_sums[l].sum() - count * q_mean * q_mean;
      const float slope = (products[l].sum() - q_mean * sum) / spread;
      errors[l] = (squares - mean * sum) - slope * slope * spread;
      lines[l] = {slope, mean - slope * q_mean};
    }
  }
};

// To 11 significant bits, to nearest even.
inline float shortened(float v) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, v);
  return __builtin_bit_cast(float, (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

}  // namespace

void quantize_codes(int bits, const float* w, int64_t n, uint8_t* q, float* scale, float* offset) {
  const float most = static_cast<float>((1 << bits) - 1);
  // The last lanes are filled from the beginning, which changes neither the ends nor much else.
  alignas(64) float v[kMostGroup];
  for (int64_t i = 0; i < n; ++i) v[i] = w[i];
  int64_t padded = n;
  for (; padded % kSums != 0; ++padded) v[padded] = v[padded - n];

  Partial lows(v[0]), highs(v[0]), nothing(0.0f);
  each(padded, [&](int64_t j, int64_t i) {
    const Vec x = load(v + i);
    lows.v[j] = min(x, lows.v[j]);
    highs.v[j] = max(x, highs.v[j]);
    nothing.v[j] = add(nothing.v[j], sub(x, x));  // NaN for what is not finite
  });
  const float low = lows.reduced([](float a, float b) { return a < b ? a : b; });
  const float high = highs.reduced([](float a, float b) { return a > b ? a : b; });
  const float range = high - low;
  for (int64_t i = 0; i < n; ++i) q[i] = 0;
  if (nothing.sum() != 0.0f || range > kLargest) {
    *scale = *offset = __builtin_nanf("");
    return;
  }
  *scale = 0.0f;
  *offset = shortened(low);
  if (range < 1e-30f) return;

  const float unit = range / most, middle = low + 0.5f * range;
  const Group group(v, padded, most, middle, most / range);
  Line lines[kLines];
  float errors[kLines];
  for (int l = 0; l < kLines; ++l) {
    const float share = 1.0f - 0.08f * static_cast<float>(l);
    lines[l] = {share, -0.5f * most * share};
  }
  group.fit(lines, errors);
  group.fit(lines, errors);
  int best = 0;
  for (int l = 1; l < kLines; ++l) best = errors[l] < errors[best] ? l : best;
  *scale = shortened(lines[best].scale * unit);
  *offset = shortened(middle + lines[best].offset * unit);
  alignas(64) float nearest_q[kMostGroup];
  each(padded, [&](int64_t, int64_t i) {
    const Vec inverse = broadcast(1.0f / *scale);
    store(nearest_q + i, nearest(load(v + i), broadcast(*offset), inverse, most));
  });
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<uint8_t>(nearest_q[i]);
}

}  // namespace quire::QUIRE_ISA
