// Low-rank adapters. Rows of a task that follow each other with one adapter share its loads; what a
// row gets is the same alone, for each of its sums has registers of its own.
#include "lora_parts.h"

#include "row_range.h"
#include "simd.h"

namespace quire::QUIRE_ISA {

namespace {

// Calls body(count, row, adapter) for each run of rows with one adapter, none left out but those
// without.
template <class Body>
void each_run(const LoraArgs& a, int64_t block, const Body& body) {
  const RowRange range(a.rows, kLoraRows, block);
  for (int64_t r = range.begin; r < range.end;) {
    int64_t end = r + 1;
    while (end < range.end && a.adapter[end] == a.adapter[r]) ++end;
    if (a.adapter[r] >= 0) body(end - r, r, a.adapter[r]);
    r = end;
  }
}

// low[R rows][ranks] = A · x, ranks <= kLoraRanks.
template <class T, int R, int N>
void dots(const LoraArgs& a, int64_t row, const T* weights, int64_t rank) {
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
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) a.low[(row + r) * a.rank + rank + n] = sum(sums[r][n]);
  }
}

template <class T, int R>
void dots_of(const LoraArgs& a, int64_t row, const T* weights, int64_t rank, int64_t ranks) {
  static_assert(kLoraRanks == 4);
  switch (ranks) {
    case 1: return dots<T, R, 1>(a, row, weights, rank);
    case 2: return dots<T, R, 2>(a, row, weights, rank);
    case 3: return dots<T, R, 3>(a, row, weights, rank);
    default: return dots<T, R, 4>(a, row, weights, rank);
  }
}

// y[R rows][columns from `begin` to `end`] += low · b.
template <class T, int R>
void add_products(const LoraArgs& a, int64_t row, const T* b, int64_t begin, int64_t end) {
  const auto step = [&](int64_t i, const auto& read, const auto& write) {
    Vec sums[R];
    for (Vec& sum_of : sums) sum_of = zero();
    for (int64_t n = 0; n < a.rank; ++n) {
      const Vec w = read(b + n * a.n + i);
      for (int r = 0; r < R; ++r) {
        sums[r] = fma(broadcast(a.low[(row + r) * a.rank + n]), w, sums[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      T* y = row_at<T>(a.y, row + r, a.y_stride) + i;
      write(y, add(read(y), sums[r]));
    }
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    step(i, [](const T* p) { return load(p); }, [](T* p, Vec v) { store(p, v); });
  }
  const int64_t left = end - i;
  if (left > 0) {
    step(i, [left](const T* p) { return load(p, left); },
         [left](T* p, Vec v) { store(p, v, left); });
  }
}

}  // namespace

template <class T>
void lora_shrink(const LoraArgs& a, int64_t task) {
  const int64_t pieces = (a.rank + kLoraRanks - 1) / kLoraRanks;
  const int64_t rank = task % pieces * kLoraRanks;
  const int64_t ranks = a.rank - rank < kLoraRanks ? a.rank - rank : kLoraRanks;
  each_run(a, task / pieces, [&](int64_t count, int64_t row, int64_t adapter) {
    const T* weights = static_cast<const T*>(a.a) + (adapter * a.rank + rank) * a.k;
    static_assert(kLoraRows == 4);
    switch (count) {
      case 1: return dots_of<T, 1>(a, row, weights, rank, ranks);
      case 2: return dots_of<T, 2>(a, row, weights, rank, ranks);
      case 3: return dots_of<T, 3>(a, row, weights, rank, ranks);
      default: return dots_of<T, 4>(a, row, weights, rank, ranks);
    }
  });
}

template <class T>
void lora_expand(const LoraArgs& a, int64_t task) {
  const int64_t pieces = (a.n + kLoraColumns - 1) / kLoraColumns;
  const int64_t begin = task % pieces * kLoraColumns;
  const int64_t end = a.n - begin < kLoraColumns ? a.n : begin + kLoraColumns;
  each_run(a, task / pieces, [&](int64_t count, int64_t row, int64_t adapter) {
    const T* b = static_cast<const T*>(a.b) + adapter * a.rank * a.n;
    switch (count) {
      case 1: return add_products<T, 1>(a, row, b, begin, end);
      case 2: return add_products<T, 2>(a, row, b, begin, end);
      case 3: return add_products<T, 3>(a, row, b, begin, end);
      default: return add_products<T, 4>(a, row, b, begin, end);
    }
  });
}

#define QUIRE_INSTANCES(T)                                  \
  template void lora_shrink<T>(const LoraArgs&, int64_t); \
  template void lora_expand<T>(const LoraArgs&, int64_t);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
