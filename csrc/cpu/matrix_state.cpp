// The gated delta rule and Mamba-2: a matrix S per head, token by token.
//
//   delta rule   S' = α S + k (β (v - α Sᵀ k))ᵀ        y = S'ᵀ q
//   Mamba-2      S' = α S + B (Δ x)ᵀ                   y = S'ᵀ C + skip · x
//
// Columns of S are independent. A task takes 32 columns at a time (16 KiB with 128 rows, which fit into
// L1) through a tile of tokens. A column's sums over the rows of S are in ascending order.
//
// The delta rule reads S twice per token: for Sᵀ k and Sᵀ q, and for the update. Its result needs no
// third sum, because S'ᵀ q = α Sᵀ q + (k · q) β (v - α Sᵀ k).
#include "norm_row.h"
#include "recurrent_parts.h"
#include "row_range.h"
#include "simd_math.h"
#include "state_past.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int kBlockVecs = static_cast<int>(kStateColumns / kLanes);

// log(1 + exp(x)). With t = exp(-|x|) and z = t / (t + 2), log(1 + t) = 2 (z + z³/3 + z⁵/5 + …), and
// z² is at most 1/9.
inline Vec softplus(Vec x) {
  const Vec t = exp(sub(zero(), abs(x)));
  const Vec z = div(t, add(t, broadcast(2.0f)));
  const Vec w = mul(z, z);
  Vec p = broadcast(2.0f / 17);
  p = fma(p, w, broadcast(2.0f / 15));
  p = fma(p, w, broadcast(2.0f / 13));
  p = fma(p, w, broadcast(2.0f / 11));
  p = fma(p, w, broadcast(2.0f / 9));
  p = fma(p, w, broadcast(2.0f / 7));
  p = fma(p, w, broadcast(2.0f / 5));
  p = fma(p, w, broadcast(2.0f / 3));
  p = fma(p, w, broadcast(2.0f));
  return fma(z, p, max(zero(), x));
}

// V vectors of columns, or the first n lanes of one.
template <int V, bool kTail>
struct Columns {
  int64_t n;

  Vec get(const float* p, int j) const { return kTail ? load(p, n) : load(p + j * kLanes); }
  void put(float* p, int j, Vec v) const {
    if (kTail) return store(p, v, n);
    store(p + j * kLanes, v);
  }

  void delta(const Token& t, int64_t rows, Place from, Place to, int64_t c) const {
    Vec m[V], p[V];
    for (int j = 0; j < V; ++j) m[j] = p[j] = zero();
    for (int64_t i = 0; i < rows; ++i) {
      const Vec k = broadcast(t.read_k[i]), q = broadcast(t.read_q[i]);
      for (int j = 0; j < V; ++j) {
        const Vec s = get(from.at + i * from.stride, j);
        m[j] = fma(k, s, m[j]);
        p[j] = fma(q, s, p[j]);
      }
    }
    const Vec alpha = broadcast(t.alpha);
    for (int j = 0; j < V; ++j) {
      m[j] = mul(broadcast(t.beta), sub(get(t.v + c, j), mul(alpha, m[j])));
      put(t.y + c, j, fma(broadcast(t.qk), m[j], mul(alpha, p[j])));
    }
    for (int64_t i = 0; i < rows; ++i) {
      const Vec k = broadcast(t.k[i]);
      const Vec a = t.row_decay == nullptr ? alpha : broadcast(t.row_decay[i]);
      for (int j = 0; j < V; ++j) {
        const Vec s = get(from.at + i * from.stride, j);
        put(to.at + i * to.stride, j, fma(k, m[j], mul(a, s)));
      }
    }
  }

  void scan(const Token& t, int64_t rows, Place from, Place to, int64_t c) const {
    const Vec alpha = broadcast(t.alpha);
    Vec change[V], y[V];
    for (int j = 0; j < V; ++j) {
      change[j] = mul(broadcast(t.beta), get(t.v + c, j));
      y[j] = zero();
    }
    for (int64_t i = 0; i < rows; ++i) {
      const Vec k = broadcast(t.k[i]), q = broadcast(t.q[i]);
      for (int j = 0; j < V; ++j) {
        const Vec s = fma(k, change[j], mul(alpha, get(from.at + i * from.stride, j)));
        put(to.at + i * to.stride, j, s);
        y[j] = fma(q, s, y[j]);
      }
    }
    for (int j = 0; j < V; ++j) put(t.y + c, j, fma(broadcast(t.qk), get(t.v + c, j), y[j]));
  }
};

using Step = void (*)(const Token&, int64_t rows, Place from, Place to, int64_t c, int64_t n);
template <bool kDelta, int V, bool kTail>
void step(const Token& t, int64_t rows, Place from, Place to, int64_t c, int64_t n) {
  const Columns<V, kTail> columns{n};
  if (kDelta) return columns.delta(t, rows, from, to, c);
  columns.scan(t, rows, from, to, c);
}

void scale(float* y, const float* x, int64_t n, Vec by) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, mul(load(x + i), by));
}

void multiply(float* y, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, mul(load(a + i), load(b + i)));
}

// A row times another one, as `sum_over` reads them.
struct Products {
  const float *a, *b;
  Vec at(int64_t i) const { return mul(load(a + i), load(b + i)); }
  Vec at(int64_t i, int64_t n) const { return mul(load(a + i, n), load(b + i, n)); }
};
struct Sum {
  static Vec onto(Vec total, Vec v) { return add(total, v); }
  static Vec onto(Vec total, Vec v, int64_t) { return add(total, v); }
};

float inverse_norm(const float* x, int64_t n) {
  return 1.0f / __builtin_sqrtf(sum_over(PlainRow<float>{x}, n, Square{}) + 1e-6f);
}

// One sequence, head and part of the columns.
struct Head {
  const MatrixStateArgs& a;
  int64_t s, head, begin, columns;
  int64_t padded;  // rows of S, so that every vector is whole
  float *tokens, *values, *state;

  Head(const MatrixStateArgs& args, int64_t task, float* room)
      : a(args), s(task / args.parts / args.heads), head(task / args.parts % args.heads),
        begin(task % args.parts * args.part_columns),
        columns(args.columns - begin < args.part_columns ? args.columns - begin : args.part_columns),
        padded(state_rows_padded(args)), tokens(room),
        values(room + kStateTile * (args.row_decays ? 5 : 2) * padded),
        state(values + kStateTile * 2 * args.part_columns) {}

  // What the delta rule needs of token r, the i-th of its tile, without its gates.
  template <class T>
  void prepare_delta(Token& t, int64_t i, int64_t r) const {
    const int64_t n = a.rows, group = head / (a.heads / a.groups);
    float* const k = tokens + i * (a.row_decays ? 5 : 2) * padded;
    float* const q = k + padded;
    const T* const x = row_at<T>(a.x, r, a.x_stride);
    convert(q, x + group * n, n);
    convert(k, x + (a.groups + group) * n, n);
    scale(k, k, padded, broadcast(inverse_norm(k, n)));
    scale(q, q, padded, broadcast(inverse_norm(q, n) / __builtin_sqrtf(static_cast<float>(n))));
    t = {k, q, k, q, nullptr, 1.0f, 1.0f, sum_over(Products{k, q}, n, Sum{}), value(i), result(i)};
    convert(value(i), x + 2 * a.groups * n + head * a.columns + begin, columns);
    if (!a.row_decays) return;
    float *const decay = q + padded, *const read_k = decay + padded, *const read_q = read_k + padded;
    convert(decay, row_at<T>(a.decay, r, a.decay_stride) + head * n, n);
    convert(read_k, a.bias + head * n, n);
    for (int64_t j = 0; j < n; j += kLanes) {
      const Vec x_bias = add(load(decay + j), load(read_k + j));
      store(decay + j, exp(mul(broadcast(-a.rate[head]), softplus(x_bias))));
    }
    multiply(read_k, k, decay, padded);
    multiply(read_q, q, decay, padded);
    t.row_decay = decay;
    t.read_k = read_k;
    t.read_q = read_q;
  }

  template <class T>
  void prepare_scan(Token& t, int64_t i, int64_t r) const {
    const int64_t n = a.rows, group = head / (a.heads / a.groups);
    float* const k = tokens + i * 2 * padded;
    float* const q = k + padded;
    const T* const x = row_at<T>(a.x, r, a.x_stride);
    convert(k, x + a.heads * a.columns + group * n, n);
    convert(q, x + a.heads * a.columns + (a.groups + group) * n, n);
    convert(value(i), x + head * a.columns + begin, columns);
    t = {k, q, k, q, nullptr, 1.0f, 1.0f, a.skip[head], value(i), result(i)};
  }

  // The gates of a tile's tokens.
  template <bool kDelta, class T>
  void set_gates(Token* t, int64_t count, int64_t r) const {
    float x[16] = {}, y[16] = {};  // of any number of lanes
    for (int64_t i = 0; i < count; ++i) {
      if (!a.row_decays) {
        x[i] = as_float(row_at<T>(a.decay, r + i, a.decay_stride)[head]) + a.bias[head];
      }
      if (kDelta) y[i] = as_float(row_at<T>(a.beta, r + i, a.beta_stride)[head]);
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      Vec size = softplus(load(x + i));
      if (!kDelta) size = max(broadcast(a.low), min(broadcast(a.high), size));
      store(x + i, exp(mul(broadcast(-a.rate[head]), size)));
      store(y + i, kDelta ? times_sigmoid(broadcast(1.0f), load(y + i)) : size);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!a.row_decays) t[i].alpha = x[i];
      t[i].beta = y[i];
    }
  }

  float* value(int64_t i) const { return values + 2 * i * a.part_columns; }
  float* result(int64_t i) const { return value(i) + a.part_columns; }

  float* slot(int64_t number) const {
    return a.state + (number * a.heads + head) * a.rows * a.columns + begin;
  }

  // Where the state before row r is, at the columns from c on; `first` is the sequence's first row.
  Place before(int64_t r, int64_t first, int64_t c) const {
    const int64_t number = r == first ? a.steps.from[s] : a.steps.to[r - 1];
    if (number >= 0) return {slot(number) + c, a.columns};
    return own(c);
  }
  Place after(int64_t r, int64_t c) const {
    const int64_t number = a.steps.to[r];
    if (number >= 0) return {slot(number) + c, a.columns};
    return own(c);
  }
  // Whether the state after the last row, r, goes past the caches. It is in another slot than the one that is
  // read, and the next step finds neither in a cache.
  bool passes_caches(int64_t r, int64_t first) const {
    const int64_t from = r == first ? a.steps.from[s] : a.steps.to[r - 1];
    return from >= 0 && a.steps.to[r] >= 0 && a.steps.to[r] != from &&
           a.steps.num * a.heads * a.rows * a.columns * 4 >= kPastBytes && a.columns % 16 == 0 &&
           reinterpret_cast<uintptr_t>(a.state) % 64 == 0;
  }
  Place own(int64_t c) const {  // the task's memory: blocks of columns one after the other
    const int64_t block = c / kStateColumns * kStateColumns;
    return {state + block * a.rows + c - block, kStateColumns};
  }
};

template <bool kDelta, class T>
void run(const MatrixStateArgs& a, int64_t task, float* room) {
  const Head head(a, task, room);
  const int64_t first = a.steps.query_start_loc[head.s], last = a.steps.query_start_loc[head.s + 1];
  if (first == last) return;
  // The ends of keys and queries that fill no vector stay zero.
  for (int64_t i = 0; i < head.values - head.tokens; ++i) room[i] = 0.0f;
  if (a.steps.from[head.s] < 0) {
    for (int64_t i = 0; i < a.rows * a.part_columns; ++i) head.state[i] = 0.0f;
  }
  const bool past = head.passes_caches(last - 1, first);
  Token tokens[kStateTile];
  for (int64_t r = first; r < last; r += kStateTile) {
    const int64_t count = last - r < kStateTile ? last - r : kStateTile;
    for (int64_t i = 0; i < count; ++i) {
      if (kDelta) {
        head.prepare_delta<T>(tokens[i], i, r + i);
      } else {
        head.prepare_scan<T>(tokens[i], i, r + i);
      }
    }
    head.set_gates<kDelta, T>(tokens, count, r);
    const int64_t cached = past && r + count == last ? count - 1 : count;
    for (int64_t c = 0; c < head.columns && cached > 0;) {
      const int64_t left = head.columns - c;
      const bool block = left >= kStateColumns, tail = left < kLanes;
      const Step one = block  ? Step{step<kDelta, kBlockVecs, false>}
                       : tail ? Step{step<kDelta, 1, true>}
                              : Step{step<kDelta, 1, false>};
      for (int64_t i = 0; i < cached; ++i) {
        one(tokens[i], a.rows, head.before(r + i, first, c), head.after(r + i, c), c, left);
      }
      c += block ? kStateColumns : tail ? left : kLanes;
    }
    for (int64_t i = cached; i < count; ++i) {
      step_past<kDelta>(tokens[i], a.rows, head.before(r + i, first, 0), head.after(r + i, 0), head.columns);
    }
    for (int64_t i = 0; i < count; ++i) {
      T* const y = row_at<T>(a.y, r + i, a.y_stride) + head.head * a.columns + head.begin;
      convert(y, tokens[i].y, head.columns);
    }
  }
  if (past) finish_stores_past();
}

}  // namespace

template <class T>
void gated_delta_rule(const MatrixStateArgs& a, int64_t task, float* room) {
  run<true, T>(a, task, room);
}

template <class T>
void mamba2_scan(const MatrixStateArgs& a, int64_t task, float* room) {
  run<false, T>(a, task, room);
}

#define QUIRE_INSTANCES(T)                                                     \
  template void gated_delta_rule<T>(const MatrixStateArgs&, int64_t, float*); \
  template void mamba2_scan<T>(const MatrixStateArgs&, int64_t, float*);

QUIRE_INSTANCES(float)
QUIRE_INSTANCES(bf16)
QUIRE_INSTANCES(f16)

}  // namespace quire::QUIRE_ISA
