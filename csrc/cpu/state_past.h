// One token's step of a matrix state that is stored past the caches, in a slot that was not read.
//
// Memory is the limit, so a head's rows are read as they follow each other, four at a time. Sums are in the
// L1 cache meanwhile, and have the order that they have in blocks of columns.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t kPastBytes = 1 << 20;    // of a layer's states in a step, which no L2 cache keeps
constexpr int64_t kPastColumns = 128;      // at a time
constexpr int64_t kPastAhead = 4 << 10;    // bytes

// Columns of the state: in a slot, or in the task's memory.
struct Place {
  float* at;
  int64_t stride;
};

// A token of one head. With a decay per row, `read_k` and `read_q` are products with it, and alpha is 1.
struct Token {
  const float *k, *q, *read_k, *read_q;  // [rows]
  const float* row_decay;                // [rows] or null
  float alpha, beta, qk;                 // Mamba-2: beta is Δ
  const float* v;                        // [columns]
  float* y;
};

// Stores a vector at a multiple of its size past the caches: they would read the old content first.
inline void store_past(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, v);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, v);
#else
  store(p, v);
#endif
}
inline void finish_stores_past() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// n columns of a state, of whole vectors.
struct PastColumns {
  const Token& t;
  Place from, to;
  int64_t n;
  float* change;  // [n]: what a row adds, times its key

  // y += Sᵀ q, and the same for k, over rows i … i + R - 1.
  template <int R>
  void read(int64_t i) const {
    const float* const s = from.at + i * from.stride;
    Vec k[R], q[R];
    for (int h = 0; h < R; ++h) {
      k[h] = broadcast(t.read_k[i + h]);
      q[h] = broadcast(t.read_q[i + h]);
      for (int64_t c = 0; c < n; c += 16) __builtin_prefetch(s + h * from.stride + c + kPastAhead / 4);
    }
    for (int64_t c = 0; c < n; c += kLanes) {
      Vec m = load(change + c), y = load(t.y + c);
      for (int h = 0; h < R; ++h) {
        const Vec x = load(s + h * from.stride + c);
        m = fma(k[h], x, m);
        y = fma(q[h], x, y);
      }
      store(change + c, m);
      store(t.y + c, y);
    }
  }

  // S' = α S + k · change, and with kScan y += S'ᵀ q.
  template <int R, bool kScan>
  void write(int64_t i) const {
    Vec k[R], q[R], a[R];
    for (int h = 0; h < R; ++h) {
      k[h] = broadcast(t.k[i + h]);
      q[h] = broadcast(t.q[i + h]);
      a[h] = broadcast(t.row_decay == nullptr ? t.alpha : t.row_decay[i + h]);
      const float* const ahead = from.at + (i + h) * from.stride + kPastAhead / 4;
      for (int64_t c = 0; kScan && c < n; c += 16) __builtin_prefetch(ahead + c);
    }
    for (int64_t c = 0; c < n; c += kLanes) {
      const Vec m = load(change + c);
      Vec y = kScan ? load(t.y + c) : zero();
      for (int h = 0; h < R; ++h) {
        const Vec old = mul(a[h], load(from.at + (i + h) * from.stride + c)), x = fma(k[h], m, old);
        store_past(to.at + (i + h) * to.stride + c, x);
        if (kScan) y = fma(q[h], x, y);
      }
      if (kScan) store(t.y + c, y);
    }
  }
  template <bool kScan>
  void write_all(int64_t rows) const {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) write<4, kScan>(i);
    for (; i < rows; ++i) write<1, kScan>(i);
  }

  void delta(int64_t rows) const {
    for (int64_t c = 0; c < n; c += kLanes) {
      store(change + c, zero());
      store(t.y + c, zero());
    }
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) read<4>(i);
    for (; i < rows; ++i) read<1>(i);
    const Vec alpha = broadcast(t.alpha), beta = broadcast(t.beta);
    for (int64_t c = 0; c < n; c += kLanes) {
      const Vec m = mul(beta, sub(load(t.v + c), mul(alpha, load(change + c))));
      store(change + c, m);
      store(t.y + c, fma(broadcast(t.qk), m, mul(alpha, load(t.y + c))));
    }
    write_all<false>(rows);
  }

  void scan(int64_t rows) const {
    for (int64_t c = 0; c < n; c += kLanes) {
      store(change + c, mul(broadcast(t.beta), load(t.v + c)));
      store(t.y + c, zero());
    }
    write_all<true>(rows);
    for (int64_t c = 0; c < n; c += kLanes) {
      store(t.y + c, fma(broadcast(t.qk), load(t.v + c), load(t.y + c)));
    }
  }
};

template <bool kDelta>
void step_past(const Token& t, int64_t rows, Place from, Place to, int64_t columns) {
  alignas(64) float change[kPastColumns];
  for (int64_t c = 0; c < columns; c += kPastColumns) {
    Token part = t;
    part.v += c;
    part.y += c;
    const int64_t n = columns - c < kPastColumns ? columns - c : kPastColumns;
    const PastColumns all{part, {from.at + c, from.stride}, {to.at + c, to.stride}, n, change};
    if (kDelta) {
      all.delta(rows);
    } else {
      all.scan(rows);
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
