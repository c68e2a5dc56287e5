// Low-rank adapters. Consecutive rows of a task with the same adapter share its loads. A row's result is
// the same alone, because each of its sums has its own registers.
#include "lora_parts.h"

#include "row_range.h"
#include "simd.h"

namespace quire::QUIRE_ISA {

namespace {

// Calls body(count, row, entry) for each run of rows with the same adapter, if it adds to the part.
template <class Body>
void each_run(const LoraArgs& a, int64_t block, int64_t part, const Body& body) {
  const RowRange range(a.rows, kLoraRows, block);
  for (int64_t r = range.begin; r < range.end;) {
    int64_t end = r + 1;
    while (end < range.end && a.adapter[end] == a.adapter[r]) ++end;
    if (a.adapter[r] >= 0) {
      const LoraEntry& entry = a.entries[a.adapter[r] * a.parts + part];
      if (entry.rank > 0) body(end - r, r, entry);
    }
    r = end;
  }
}

float* low_at(const LoraArgs& a, int64_t row, int64_t part) {
  return a.low + (row * a.parts + part) * a.rank;
}

// low[R rows][N ranks from `rank` on] = scale · A · x.
template <class T, int R, int N>
void dots(const LoraArgs& a, int64_t row, int64_t part, const LoraEntry& entry, int64_t rank) {
  const T* weights = static_cast<const T*>(entry.a) + rank * a.k;
  Vec sums[R][N];
  for (auto& of_row : sums) {
    for (Vec& sum_of : of_row) sum_of = zero();
  }
  const auto step = [&](const auto& read) {
    Vec w[N];
    for (int n = 0; n < N; ++n) w[n] = read(weights + n * a.k);
    for (int r = 0; r < R; ++r) {
      const Vec x = read(row_at<T>(a.x, row + r, a.x_stride));
      for (int n = 0; n < N; ++n) sums[r][n] = fma(w[n], x, sums[r][n]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= a.k; i += kLanes) step([i](const T* p) { return load(p + i); });
  if (i < a.k) step([i, &a](const T* p) { return load(p + i, a.k - i); });
  const float scale = static_cast<float>(entry.scale);
  for (int r = 0; r < R; ++r) {
    float* low = low_at(a, row + r, part) + rank;
    for (int n = 0; n < N; ++n) low[n] = scale * sum(sums[r][n]);
  }
}

// All of up to kLoraRanks ranks from `rank` on: one by one if they are fewer.
template <class T, int R>
void dots_of(const LoraArgs& a, int64_t row, int64_t part, const LoraEntry& entry, int64_t rank) {
  if (entry.rank - rank >= kLoraRanks) return dots<T, R, kLoraRanks>(a, row, part, entry, rank);
  for (; rank < entry.rank; ++rank) dots<T, R, 1>(a, row, part, entry, rank);
}

// y[`left` < kLanes columns] += low · b, of which a column's elements are `width` apart.
template <class T, class Y>
__attribute__((noinline)) void add_last(Y* y, const float* low, const T* b, int64_t rank,
                                        int64_t width, int64_t left) {
  Vec sums = zero();
  for (int64_t n = 0; n < rank; ++n) sums = fma(broadcast(low[n]), load(b + n * width, left), sums);
  store(y, add(load(y, left), sums), left);
}

// y[R rows][columns from `begin` to `end`] += low · b; the part's columns begin at `first`, and
// there are `width` of them. y is of Y.
template <class T, class Y, int R>
void add_products(const LoraArgs& a, int64_t row, int64_t part, const LoraEntry& entry,
                  int64_t first, int64_t width, int64_t begin, int64_t end) {
  const T* b = static_cast<const T*>(entry.b) - first;
  const float* lows[R];
  for (int r = 0; r < R; ++r) lows[r] = low_at(a, row + r, part);
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Vec sums[R];
    for (Vec& sum_of : sums) sum_of = zero();
    for (int64_t n = 0; n < entry.rank; ++n) {
      const Vec w = load(b + n * width + i);
      for (int r = 0; r < R; ++r) sums[r] = fma(broadcast(lows[r][n]), w, sums[r]);
    }
    for (int r = 0; r < R; ++r) {
      Y* y = row_at<Y>(a.y, row + r, a.y_stride) + i;
      store(y, add(load(y), sums[r]));
    }
  }
  for (int r = 0; i < end && r < R; ++r) {
    add_last<T>(row_at<Y>(a.y, row + r, a.y_stride) + i, lows[r], b + i, entry.rank, width, end - i);
  }
}

}  // namespace

template <class T>
void lora_shrink(const LoraArgs& a, int64_t task) {
  const int64_t pieces = (a.rank + kLoraRanks - 1) / kLoraRanks;
  const int64_t rank = task % pieces * kLoraRanks, part = task / pieces % a.parts;
  each_run(a, task / pieces / a.parts, part,
           [&](int64_t count, int64_t row, const LoraEntry& entry) {
             if (rank >= entry.rank) return;
             static_assert(kLoraRows == 4);
             switch (count) {
               case 1: return dots_of<T, 1>(a, row, part, entry, rank);
               case 2: return dots_of<T, 2>(a, row, part, entry, rank);
               case 3: return dots_of<T, 3>(a, row, part, entry, rank);
               default: return dots_of<T, 4>(a, row, part, entry, rank);
             }
           });
}

template <class T, class Y>
void lora_expand(const LoraArgs& a, int64_t task) {
  const int64_t pieces = (a.n + kLoraColumns - 1) / kLoraColumns, block = task / pieces;
  const int64_t begin = task % pieces * kLoraColumns;
  const int64_t end = a.n - begin < kLoraColumns ? a.n : begin + kLoraColumns;
  for (int64_t part = 0; part < a.parts; ++part) {
    const int64_t first = part > 0 ? a.ends[part - 1] : 0, last = a.ends[part];
    const int64_t width = last - first;
    const int64_t from = begin > first ? begin : first, to = end < last ? end : last;
    if (from >= to) continue;
    each_run(a, block, part, [&](int64_t count, int64_t row, const LoraEntry& entry) {
      switch (count) {
        case 1: return add_products<T, Y, 1>(a, row, part, entry, first, width, from, to);
        case 2: return add_products<T, Y, 2>(a, row, part, entry, first, width, from, to);
        case 3: return add_products<T, Y, 3>(a, row, part, entry, first, width, from, to);
        default: return add_products<T, Y, 4>(a, row, part, entry, first, width, from, to);
      }
    });
  }
}

template void lora_shrink<float>(const LoraArgs&, int64_t);
template void lora_shrink<bf16>(const LoraArgs&, int64_t);
template void lora_shrink<f16>(const LoraArgs&, int64_t);
template void lora_expand<float, float>(const LoraArgs&, int64_t);
template void lora_expand<bf16, bf16>(const LoraArgs&, int64_t);
template void lora_expand<f16, f16>(const LoraArgs&, int64_t);
template void lora_expand<bf16, float>(const LoraArgs&, int64_t);
template void lora_expand<f16, float>(const LoraArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
