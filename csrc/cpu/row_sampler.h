// Samples one row of logits, or computes its log-probabilities: selection by bounds and histograms, no
// sort. Only for sampler.cpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>

#include "sampler.h"

namespace quire {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kSortable = 64;  // max weights that are sorted
constexpr int64_t kSampled = 1024;  // logits that estimate the distribution of a row
constexpr int kBucketBits = 11;
constexpr int64_t kAll = -1;  // tokens kept
constexpr double kLeastDivisor = 1e-269;  // any float divided by it is a finite double

// Uninitialized, so that unused pages are never touched.
template <class T>
std::unique_ptr<T[]> room(int64_t size) {
  return std::unique_ptr<T[]>(new T[static_cast<size_t>(size)]);
}

// Maps floats to integers of the same order; both zeros are 0.
inline int32_t order_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<int32_t>(bits >> 31 ? 0x80000000u - bits : bits);
}
inline float float_at(int32_t order) {
  const uint32_t bits = static_cast<uint32_t>(order);
  return std::bit_cast<float>(order < 0 ? 0x80000000u - bits : bits);
}

// The smallest float x with (x - peak) / temperature >= least; the quotient increases with x.
inline float least_logit(double peak, double temperature, double least) {
  int32_t below = order_of(kLowest), found = order_of(static_cast<float>(peak));
  while (found - static_cast<int64_t>(below) > 1) {
    const int32_t middle = std::midpoint(below, found);
    const double x = (static_cast<double>(float_at(middle)) - peak) / temperature;
    (x >= least ? found : below) = middle;
  }
  return float_at(found);
}

}  // namespace

// Samples rows one after another, in one thread and its own memory.
class RowSampler {
 public:
  void reserve(int64_t vocab) {
    if (vocab <= reserved_) return;
    edited_ = room<float>(vocab);
    ids_ = room<int32_t>(vocab);
    values_ = room<float>(vocab);
    sorted_ = room<float>(vocab);
    weights_ = room<double>(vocab);
    left_ = room<double>(vocab);
    sums_ = room<double>((vocab + kRun - 1) / kRun);
    reserved_ = vocab;
  }

  int64_t sample(const SampleKernels& kernels, const float* logits, int64_t vocab,
                 const SampleRow& row) {
    kernels_ = &kernels;
    const float* x = row.edited() ? edit(logits, vocab, row) : logits;
    const float peak = kernels.peak(x, vocab);
    if (!std::isfinite(peak)) return -1;
    if (row.temperature == 0) return kernels.first_from(x, vocab, peak);
    peak_ = peak;
    temperature_ = row.temperature;

    const int64_t count = keep(x, vocab, row);
    if (count == kAll) return row.keyed ? draw(x, nullptr, vocab, row.key) : draw(x, vocab, row.u);
    if (count == 1) return ids_[0];
    if (row.keyed) return ids_[draw(values_.get(), ids_.get(), count, row.key)];
    return ids_[draw(values_.get(), count, row.u)];
  }

  void logprobs(const SampleKernels& kernels, const float* logits, int64_t vocab, LogprobRow& row) {
    kernels_ = &kernels;
    const SampleRow* sampled = row.sampled;
    const float* x = sampled && sampled->edited() ? edit(logits, vocab, *sampled) : logits;
    peak_ = kernels.peak(x, vocab);
    temperature_ = 1;
    int64_t kept = kAll;
    if (sampled && sampled->temperature > 0) {
      temperature_ = sampled->temperature;
      kept = keep(x, vocab, *sampled);
    }
    const double divisor = std::max(temperature_, kLeastDivisor);
    const double total = kept == kAll ? sum(x, vocab) : sum(values_.get(), kept);
    const double subtrahend = row.as_logits ? 0 : peak_ / divisor + std::log(total);
    const auto value = [&](int64_t id) { return static_cast<double>(x[id]) / divisor - subtrahend; };

    int32_t* ids = ids_.get();
    const auto is_kept = [&](int64_t id) {
      return kept == kAll || std::binary_search(ids, ids + kept, static_cast<int32_t>(id));
    };
    row.ids[0] = row.token;
    row.values[0] = is_kept(row.token) ? value(row.token) : kLowest;
    for (int64_t i = 1 + row.k; i <= row.k + row.named; ++i) {
      row.values[i] = is_kept(row.ids[i]) ? value(row.ids[i]) : kLowest;
    }
    row.rank = 1 + larger(x, vocab, kept, is_kept(row.token) ? x[row.token] : kLowest);
    if (row.k > 0) list(x, vocab, kept, row.k, row.ids + 1);
    for (int64_t i = 1; i <= row.k; ++i) {
      row.values[i] = kept == kAll || i <= kept ? value(row.ids[i]) : kLowest;
    }
  }

 private:
  // Writes the k likeliest tokens, ties by id; behind those in ids_ come the first others. Sorts ids_.
  void list(const float* x, int64_t vocab, int64_t kept, int64_t k, int64_t* out) {
    int64_t count = kept;
    if (kept == kAll) count = keep_largest(collect(x, vocab, rank_bound(x, vocab, k)), k);
    int32_t* ids = ids_.get();
    const int64_t listed = std::min(k, count);
    for (int64_t id = 0, i = 0, n = listed; n < k; ++id) {
      if (i < count && ids[i] == id) ++i;
      else out[n++] = id;
    }
    const auto likelier = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
    std::partial_sort(ids, ids + listed, ids + count, likelier);
    std::copy_n(ids, listed, out);
  }

  // How many kept logits exceed `least`.
  int64_t larger(const float* x, int64_t vocab, int64_t kept, float least) const {
    const int64_t n = kept == kAll ? vocab : kept;
    const float* values = kept == kAll ? x : values_.get();
    int32_t found = 0;
    for (int64_t i = 0; i < n; ++i) found += values[i] > least;
    return found;
  }

  // Selects the tokens to draw from. Returns their number in ids_, ascending, and values_; kAll for all.
  int64_t keep(const float* x, int64_t vocab, const SampleRow& row) {
    const bool ranked = 0 < row.top_k && row.top_k < vocab;
    if (!ranked && row.min_p == 0) {
      return row.top_p >= 1 ? kAll : collect_nucleus(x, vocab, row.top_p);
    }
    // top_k and min_p select the logits from a bound on; top_p then selects among them.
    float bound = kLowest;
    if (row.min_p > 0) bound = least_logit(peak_, temperature_, std::log(row.min_p));
    if (ranked) bound = std::max(bound, rank_bound(x, vocab, row.top_k));
    int64_t count = collect(x, vocab, bound);
    if (ranked) count = keep_largest(count, row.top_k);
    if (row.top_p < 1) count = keep_nucleus(count, row.top_p * sum(values_.get(), count));
    return count;
  }

  const float* edit(const float* logits, int64_t vocab, const SampleRow& row) {
    float* x = edited_.get();
    if (row.mask) logits = masked(logits, vocab, row.mask, row.restricted ? sorted_.get() : x);
    if (row.restricted) {
      std::fill_n(x, vocab, kLowest);
      for (int64_t i = 0; i < row.allowed.size; ++i) {
        x[row.allowed.ids[i]] = logits[row.allowed.ids[i]];
      }
    } else if (logits != x) {
      std::copy_n(logits, vocab, x);
    }
    for (int64_t i = 0; i < row.banned.size; ++i) x[row.banned.ids[i]] = kLowest;
    for (int64_t i = 0; i < row.bias.size; ++i) x[row.bias.ids[i]] += row.bias.values[i];
    for (int64_t i = 0; i < row.counted.size; ++i) {
      const float count = row.counted.values[i];
      float& logit = x[row.counted.ids[i]];
      logit = logit > 0 ? logit / row.repetition : logit * row.repetition;
      logit -= row.frequency * count;
      logit -= row.presence * (count > 0 ? 1.0f : 0.0f);
    }
    return x;
  }

  // out = x if the token's bit is set. Most words of a grammar's mask are all ones or all zeros.
  static const float* masked(const float* x, int64_t vocab, const uint32_t* mask, float* out) {
    constexpr int64_t kBits = 32;
    for (int64_t i = 0; i < vocab; i += kBits) {
      const uint32_t word = mask[i / kBits];
      const int64_t n = std::min(kBits, vocab - i);
      if (word == 0) {
        std::fill_n(out + i, n, kLowest);
      } else if (word == ~uint32_t{0}) {
        std::copy_n(x + i, n, out + i);
      } else {
        for (int64_t j = 0; j < n; ++j) out[i + j] = word >> j & 1 ? x[i + j] : kLowest;
      }
    }
    return out;
  }

  // The sum of the weights of n logits; also fills sums_ with the sums of runs.
  double sum(const float* x, int64_t n) {
    kernels_->run_sums(x, n, peak_, temperature_, sums_.get());
    return std::accumulate(sums_.get(), sums_.get() + (n + kRun - 1) / kRun, 0.0);
  }

  // The index of the largest score, the first of equals. Only logits whose bound reaches the best score
  // so far are scored; the search starts with the likeliest token.
  int64_t draw(const float* x, const int32_t* ids, int64_t n, const DrawKey& key) {
    const auto score = [&](int64_t i) {
      const int64_t id = ids ? ids[i] : i;
      const double scaled = (static_cast<double>(x[i]) - peak_) / temperature_;
      return scaled + gumbel(static_cast<uint32_t>(id), key);
    };
    const float peak = static_cast<float>(peak_);
    const double most = std::numeric_limits<float>::max();
    const Draw race{key, ids, peak, static_cast<float>(std::min(1 / temperature_, most))};
    int64_t best = kernels_->first_from(x, n, peak);
    double top = score(best);
    for (int64_t i = 0;; ++i) {
      i = kernels_->contender(x, i, n, race, static_cast<float>(top));
      if (i >= n) return best;
      const double found = score(i);
      if (found > top || (found == top && i < best)) {
        best = i;
        top = found;
      }
    }
  }

  // The index of u in the cumulative distribution of the weights of n logits. Only one run is scanned.
  int64_t draw(const float* x, int64_t n, double u) {
    double rest = u * sum(x, n), before = 0;
    int64_t run = 0;
    const int64_t last = (n - 1) / kRun;
    while (run < last && before + sums_[run] <= rest) before += sums_[run++];
    rest -= before;
    double weights[kRun];
    const int64_t begin = run * kRun, size = std::min<int64_t>(kRun, n - begin);
    kernels_->weights(x + begin, size, peak_, temperature_, weights);
    double mass = 0;
    int64_t heavy = 0;  // the result if the run's sum and its running sum round differently
    for (int64_t i = 0; i < size; ++i) {
      mass += weights[i];
      if (mass > rest) return begin + i;
      if (weights[i] > 0) heavy = i;
    }
    return begin + heavy;
  }

  // A bound that at least k logits reach, and few more: the k-th largest of the peaks of many groups.
  float rank_bound(const float* x, int64_t vocab, int64_t k) {
    const int64_t size = vocab / std::max<int64_t>(8 * k, 1024);
    if (size == 0) return kLowest;
    float* peaks = sorted_.get();
    const int64_t groups = kernels_->group_peaks(x, vocab, size, peaks);
    if (groups < k) return kLowest;
    std::nth_element(peaks, peaks + k - 1, peaks + groups, std::greater<>());
    return peaks[k - 1];
  }

  // Writes the nucleus of a whole row to ids_ and values_; returns its size. Reads few other tokens.
  int64_t collect_nucleus(const float* x, int64_t vocab, double p) {
    const double total = sum(x, vocab), target = p * total, rest = total - target;
    if (vocab >= 8 * kSampled) {
      const int64_t count = collect(x, vocab, sampled_bound(x, vocab, 0.8 * rest));
      const int64_t kept = keep_nucleus(count, target);
      if (mass_ >= target) return kept;
    }
    // So small that the whole vocabulary with this weight is half of the mass to leave out.
    const double lightest = std::log(0.5 * rest / static_cast<double>(vocab));
    constexpr double least = -std::numeric_limits<float>::max();
    const double bound = std::max(peak_ + temperature_ * lightest, least);
    const float below = std::nextafter(static_cast<float>(bound), kLowest);
    return keep_nucleus(collect(x, vocab, below), target);
  }

  // A logit below which the weights add up to about `mass`, estimated from a sample.
  float sampled_bound(const float* x, int64_t vocab, double mass) {
    const int64_t step = vocab / kSampled;
    float* sorted = sorted_.get();
    for (int64_t i = 0; i < kSampled; ++i) sorted[i] = x[i * step];
    std::sort(sorted, sorted + kSampled);
    double weights[kSampled];
    kernels_->weights(sorted, kSampled, peak_, temperature_, weights);
    int64_t i = 0;
    for (; i < kSampled - 1 && mass > 0; ++i) mass -= weights[i] * static_cast<double>(step);
    return sorted[i];
  }

  // Writes the logits from `bound` on to ids_ and values_; returns their number.
  int64_t collect(const float* x, int64_t vocab, float bound) {
    const int64_t count = kernels_->collect(x, vocab, bound, ids_.get());
    for (int64_t i = 0; i < count; ++i) values_[i] = x[ids_[i]];
    return count;
  }

  // Keeps the entries of ids_ and values_ for which keep(i) is true; returns their number.
  template <class Keep>
  int64_t filter(int64_t count, const Keep& keep) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (!keep(i)) continue;
      ids_[kept] = ids_[i];
      values_[kept++] = values_[i];
    }
    return kept;
  }

  // Keeps all values that are at least the k-th largest; returns their number.
  int64_t keep_largest(int64_t count, int64_t k) {
    if (count <= k) return count;
    float* sorted = sorted_.get();
    std::copy_n(values_.get(), count, sorted);
    std::nth_element(sorted, sorted + k - 1, sorted + count, std::greater<>());
    const float least = sorted[k - 1];
    return filter(count, [&](int64_t i) { return values_[i] >= least; });
  }

  // Keeps the entries that have less than `target` before them in descending order of weight, ties by
  // id. Returns their number, and sets mass_ to their sum. The last one is found by histograms over the
  // bits of the weights; each histogram covers one bucket of the previous one.
  int64_t keep_nucleus(int64_t count, double target) {
    double* weights = weights_.get();
    kernels_->weights(values_.get(), count, peak_, temperature_, weights);
    const auto bits = [](double weight) { return std::bit_cast<uint64_t>(weight); };

    double* left = left_.get();
    std::copy_n(weights, count, left);
    uint64_t low = bits(*std::min_element(left, left + count)), high = bits(1.0);
    int64_t size = count;
    double before = 0;
    while (size > kSortable && low < high) {
      const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBucketBits);
      double masses[1 << kBucketBits] = {};
      for (int64_t i = 0; i < size; ++i) masses[(high - bits(left[i])) >> shift] += left[i];
      uint64_t last = (high - low) >> shift, bucket = 0;
      while (masses[last] == 0) --last;
      while (bucket < last && before + masses[bucket] < target) before += masses[bucket++];
      double* end = std::copy_if(left, left + size, left, [&](double weight) {
        return (high - bits(weight)) >> shift == bucket;
      });
      size = end - left;
      high -= bucket << shift;
      low = std::max(low, high - ((uint64_t{1} << shift) - 1));
    }
    std::sort(left, left + size, std::greater<>());
    int64_t end = 0;
    while (end < size && before < target) before += left[end++];
    mass_ = before;
    const double least = left[end - 1];
    int64_t ties = std::count(left, left + end, least);
    return filter(count, [&](int64_t i) {
      return weights[i] > least || (weights[i] == least && ties-- > 0);
    });
  }

  const SampleKernels* kernels_ = nullptr;
  double peak_ = 0, temperature_ = 1, mass_ = 0;
  int64_t reserved_ = 0;
  std::unique_ptr<int32_t[]> ids_;  // remaining tokens
  std::unique_ptr<float[]> values_;  // their logits
  std::unique_ptr<float[]> edited_, sorted_;
  std::unique_ptr<double[]> weights_, left_, sums_;
};

}  // namespace quire
