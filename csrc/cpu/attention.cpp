// Paged attention with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022), in float;
// attention_pairs.h has faster products for some caches.
//
// A task is one tile of query rows (positions x heads of one kv head), so that a key is read once
// for all of them:
//
//             keys  0 .. 127 | 128 .. 255 | ... | 1024 ..     tiles of kAttentionKeys
//   rows      ------> top, sum, acc      ...    | merged into the total after kAttentionPartition
//
// What is computed for a row is a function of its position alone: tiles and partitions begin at
// fixed positions, a row's dot products and sums have one order whatever other rows are in the
// task, and keys it may not see change nothing (0 * v is added, or the tile is left out).
#include "attention_pairs.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kNothing = -1e30f;  // `top` of a row that has seen no key: exp2(kNothing - x) is 0

struct Rows {
  int count;
  int group;         // heads a position
  int64_t position;  // of row 0
  int64_t dim;

  int64_t at(int r) const { return position + r / group; }
};

// One query row as floats; returns what its scores are to be multiplied by.
template <class Q>
float load_query(const Q* from, int64_t dim, float* q) {
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) store(q + d, load(from + d));
  if (d < dim) store(q + d, load(from + d, dim - d));
  return 1.0f;
}

// A tile's query rows: floats, or for attention_pairs.h the elements of its products.
template <class E>
struct Queries {
  alignas(64) E rows[kAttentionRows * kWidth];
  float worth[kAttentionRows];  // what a row's scores are to be multiplied by
};

float exp2(float x) { return largest(exp2(broadcast(x))); }

void clear(const Rows& rows, State& state) {
  for (int r = 0; r < rows.count; ++r) {
    state.top[r] = kNothing;
    state.sum[r] = 0.0f;
  }
  __builtin_memset(state.acc, 0, sizeof(float) * kWidth * static_cast<uint64_t>(rows.count));
}

// scores[r][j] = q[r] . k[j] for R rows and all kLanes-wide groups of keys that touch the tile's.
template <int R, class T>
void score(const float* q, const KeyTile<T>& keys, const KeyTile<T>* next, int64_t dim,
           float* scores) {
  for (int j = keys.first / kGroup * kGroup; j < keys.last; j += kGroup) {
    Vec part[R][kGroup];
    for (int i = 0; i < kGroup; i += 4) {
      const T* const* k = keys.k + j + i;
      if (next != nullptr) fetch(next->k + j + i, 4, dim);
      Vec s[R][4];
      for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();
      int64_t d = 0;
      for (; d + kLanes <= dim; d += kLanes) {
        const Vec k0 = load(k[0] + d), k1 = load(k[1] + d), k2 = load(k[2] + d), k3 = load(k[3] + d);
        for (int r = 0; r < R; ++r) {
          const Vec x = load(q + r * kWidth + d);
          s[r][0] = fma(x, k0, s[r][0]);
          s[r][1] = fma(x, k1, s[r][1]);
          s[r][2] = fma(x, k2, s[r][2]);
          s[r][3] = fma(x, k3, s[r][3]);
        }
      }
      if (d < dim) {
        for (int c = 0; c < 4; ++c) {
          const Vec tail = load(k[c] + d, dim - d);
          for (int r = 0; r < R; ++r) s[r][c] = fma(load(q + r * kWidth + d, dim - d), tail, s[r][c]);
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < 4; ++c) part[r][i + c] = s[r][c];
      }
    }
    for (int r = 0; r < R; ++r) {
      const Vec score = sums(part[r]);
      store(scores + r * kKeys + j,
            kIsInt8<T> ? mul(score, load(keys.k_scale + j)) : score);
    }
  }
}

// Scores of one row to weights: hides keys outside [low, high], raises `top`, and returns by what
// the earlier weights shrink.
float weigh(float* scores, int64_t low, int64_t high, float scale, float& top_, float& sum_) {
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

// acc[r] = acc[r] * keep[r] + sum over keys of weight[r][j] * v[j] for R rows and C vectors from
// column d on. With n != 0 only the first n < kLanes columns of one vector count.
template <int R, int C, class T>
void add_values(float* acc, const float* weights, const float* keep, const KeyTile<T>& keys,
                const KeyTile<T>* next, int64_t dim, int64_t d, int64_t n) {
  Vec s[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      s[r][c] = mul(load(acc + r * kWidth + d + c * kLanes), broadcast(keep[r]));
    }
  }
  for (int j = keys.first; j < keys.last; ++j) {
    if (next != nullptr) fetch(next->v + j, 1, dim);
    const T* v = keys.v[j] + d;
    Vec x[C];
    for (int c = 0; c < C; ++c) x[c] = n != 0 ? load(v, n) : load(v + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(weights[r * kKeys + j]);
      for (int c = 0; c < C; ++c) s[r][c] = fma(weight, x[c], s[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(acc + r * kWidth + d + c * kLanes, s[r][c]);
  }
}

constexpr int kColumns = kLanes >= 16 ? 4 : 2;  // accumulators of add_values stay in registers

// The weights of R rows times the tile's values.
template <int R, class T>
void add_weighted(float* acc, float* weights, const float* keep, const KeyTile<T>& keys,
                  const KeyTile<T>* next, int64_t dim, const float*) {
  if constexpr (kIsInt8<T>) {
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kKeys; j += kGroup) {
        float* w = weights + r * kKeys + j;
        store(w, mul(load(w), load(keys.v_scale + j)));
      }
    }
  }
  int64_t d = 0;
  for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
    add_values<R, kColumns>(acc, weights, keep, keys, d == 0 ? next : nullptr, dim, d, 0);
  }
  for (; d + kLanes <= dim; d += kLanes) {
    add_values<R, 1>(acc, weights, keep, keys, d == 0 ? next : nullptr, dim, d, 0);
  }
  if (d < dim) add_values<R, 1>(acc, weights, keep, keys, d == 0 ? next : nullptr, dim, d, dim - d);
}

// Puts the columns of acc in order, from that in which `add_weighted` of the elements leaves them.
void order_columns(float*, int64_t, const float*) {}

// One key tile for R rows from `first` on; asks for `next`, unless it is null.
template <int R, class E, class T>
void attend_rows(const Rows& rows, int first, const Queries<E>& q, const KeyTile<T>& keys,
                 const KeyTile<T>* next, int64_t start, int64_t window, float scale, float* scores,
                 State& state) {
  const E* row = q.rows + first * kWidth;
  score<R>(row, keys, next, rows.dim, scores);
  float keep[R];
  for (int r = 0; r < R; ++r) {
    const int64_t high = rows.at(first + r) - start;
    const int64_t low = window > 0 ? high - window + 1 : 0;
    keep[r] = weigh(scores + r * kKeys, low, high, scale * q.worth[first + r],
                    state.top[first + r], state.sum[first + r]);
  }
  add_weighted<R>(state.acc + first * kWidth, scores, keep, keys, next, rows.dim, row);
}

template <class E, class T>
void attend(const Rows& rows, const Queries<E>& q, const KeyTile<T>& keys, const KeyTile<T>* next,
            int64_t start, int64_t window, float scale, State& state) {
  alignas(64) float scores[4 * kKeys];
  int r = 0;
  for (; r + 4 <= rows.count; r += 4, next = nullptr) {
    attend_rows<4>(rows, r, q, keys, next, start, window, scale, scores, state);
  }
  switch (rows.count - r) {
    case 3: return attend_rows<3>(rows, r, q, keys, next, start, window, scale, scores, state);
    case 2: return attend_rows<2>(rows, r, q, keys, next, start, window, scale, scores, state);
    case 1: return attend_rows<1>(rows, r, q, keys, next, start, window, scale, scores, state);
    default: return;
  }
}

// Adds a partial result to the total. An empty one on either side changes nothing.
void merge(const Rows& rows, State& total, const State& part) {
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

// q[r] of the tile's rows.
template <class Q, class E>
void load_rows(const AttentionArgs& a, const Rows& rows, int64_t offset, Queries<E>& q) {
  for (int r = 0; r < rows.count; ++r) {
    const Q* from = static_cast<const Q*>(a.q) + offset + r / rows.group * a.q_stride +
                    r % rows.group * rows.dim;
    q.worth[r] = load_query(from, rows.dim, q.rows + r * kWidth);
  }
}

// acc / sum; adding zero makes -0 of an underflow 0, whose sign depends on the tiling.
template <class Q>
void store_rows(const AttentionArgs& a, const Rows& rows, int64_t offset, const State& state) {
  for (int r = 0; r < rows.count; ++r) {
    Q* to = static_cast<Q*>(a.out) + offset + r / rows.group * a.out_stride +
            r % rows.group * rows.dim;
    const Vec scale = broadcast(1.0f / state.sum[r]);
    for (int64_t d = 0; d < rows.dim; d += kLanes) {
      const Vec v = add(mul(load(state.acc + r * kWidth + d), scale), zero());
      if (d + kLanes <= rows.dim) {
        store(to + d, v);
      } else {
        store(to + d, v, rows.dim - d);
      }
    }
  }
}

// kv heads [head, end_head) of a tile.
template <class E, class T>
void attend_tile(const AttentionArgs& a, const AttentionTile& tile, int64_t head,
                 int64_t end_head) {
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const Rows rows{tile.rows * group, group, tile.position, a.head_dim};
  const int32_t* table = a.block_tables + tile.seq * a.block_table_stride;
  const int64_t end = tile.position + tile.rows;
  const int64_t begin = a.window > 0 && tile.position >= a.window ? tile.position - a.window + 1 : 0;
  const int64_t first = begin / kKeys * kKeys;
  Queries<E> q;
  State states[2];
  KeyTile<T> tiles[2];
  KeyTile<T> *keys = &tiles[0], *next = &tiles[1];
  find_keys(a, table, head, first, begin, end, *keys);
  for (; head < end_head; ++head) {
    const int64_t column = head * group * a.head_dim;
    if constexpr (kIsFloat<E>) {
      switch (a.q_dtype) {
        case kBFloat16: load_rows<bf16>(a, rows, tile.row * a.q_stride + column, q); break;
        case kFloat16: load_rows<f16>(a, rows, tile.row * a.q_stride + column, q); break;
        default: load_rows<float>(a, rows, tile.row * a.q_stride + column, q);
      }
    } else {
      load_rows<bf16>(a, rows, tile.row * a.q_stride + column, q);
    }
    State *part = &states[0], *total = nullptr;
    clear(rows, *part);
    for (int64_t start = first; start < end; start += kKeys) {
      if (start % kAttentionPartition == 0 && start > begin) {
        if (total == nullptr) {
          total = part;
          part = &states[1];
        } else {
          merge(rows, *total, *part);
        }
        clear(rows, *part);
      }
      const bool more = start + kKeys < end, other_head = !more && head + 1 < end_head;
      if (more) find_keys(a, table, head, start + kKeys, begin, end, *next);
      if (other_head) find_keys(a, table, head + 1, first, begin, end, *next);
      attend(rows, q, *keys, more || other_head ? next : nullptr, start, a.window,
             a.scale * kLog2E, *part);
      KeyTile<T>* done = keys;
      keys = next;
      next = done;
    }
    if (total != nullptr) merge(rows, *total, *part);
    State& result = total != nullptr ? *total : *part;
    for (int r = 0; r < rows.count; ++r) order_columns(result.acc + r * kWidth, rows.dim, q.rows);
    switch (a.q_dtype) {
      case kBFloat16: store_rows<bf16>(a, rows, tile.row * a.out_stride + column, result); break;
      case kFloat16: store_rows<f16>(a, rows, tile.row * a.out_stride + column, result); break;
      default: store_rows<float>(a, rows, tile.row * a.out_stride + column, result);
    }
  }
}

}  // namespace

template <class T>
void paged_attention(const AttentionArgs& a, int64_t task) {
  // All tiles of some heads first: a prompt's tiles read the same keys.
  const AttentionTile& tile = a.tiles[task % a.num_tiles];
  int64_t head = task / a.num_tiles * a.task_heads;
  const int64_t end = head + a.task_heads < a.kv_heads ? head + a.task_heads : a.kv_heads;
#if defined(QUIRE_TILES)
  if constexpr (kIsBfloat16<T> || kIsInt8<T>) {
    if (attention_fits_tiles(a)) return tiled_attention<T>(a, tile, head, end);
  }
#endif
#if defined(QUIRE_PAIRS)
  if constexpr (kIsBfloat16<T> || kIsInt8<T>) {
    if (fits_pairs(a)) return attend_tile<typename Pairs<T>::Element, T>(a, tile, head, end);
  }
#endif
  attend_tile<float, T>(a, tile, head, end);
}

void exp2_floats(float* y, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i < kLanes ? count - i : kLanes;
    if (n == kLanes) {
      store(y + i, exp2(load(x + i)));
    } else {
      store(y + i, exp2(load(x + i, n)), n);
    }
  }
}

template void paged_attention<float>(const AttentionArgs&, int64_t);
template void paged_attention<bf16>(const AttentionArgs&, int64_t);
template void paged_attention<f16>(const AttentionArgs&, int64_t);
template void paged_attention<int8_t>(const AttentionArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
