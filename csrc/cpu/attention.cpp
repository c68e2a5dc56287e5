// Paged attention with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022), in float;
// attention_pairs.h and attention_float8.h
// have faster products for some caches. A task is a tile of query rows (positions x
// heads of one kv head), so that a key is read once for all of them; attention_walk.h says in which
// order.
#include "attention_float8.h"
#include "attention_walk.h"

namespace quire::QUIRE_ISA {

namespace {

// A tile's query rows: floats, or for attention_pairs.h the elements of its products.
template <class E>
struct Queries {
  alignas(64) E rows[kAttentionRows * kWidth];
  float worth[kAttentionRows];  // what a row's scores are to be multiplied by
};

// One key tile for R rows from `first` on.
template <int R, class E, class T>
void attend_rows(const Rows& rows, int first, const Queries<E>& q, const Keys<T>& keys,
                 const E* values, const Scales* scales, Ahead& ahead, int64_t start,
                 int64_t window, Scaling scaling, float* scores, State& state) {
  const E* row = q.rows + first * kWidth;
  score<R>(row, keys, scales, ahead, scores);
  const int begin = first_group(keys), end = end_group(keys);
  float scales_[R], keep[R];
  for (int r = 0; r < R; ++r) {
    scales_[r] = scaling.scale * q.worth[first + r];
    if (scaling.cap > 0.0f) {
      cap_scores(scores + r * kKeys, begin, end, scales_[r]);
      scales_[r] = scaling.cap;
    }
    const int64_t high = rows.at(first + r) - start;
    const int64_t low = window > 0 ? high - window + 1 : 0;
    hide(scores + r * kKeys, begin, end, low, high);
  }
  weigh<R>(scores, begin, end, scales_, state.top + first, state.sum + first, keep);
  add_weighted<R>(state.acc + first * kWidth, scores, keep, keys, scales, ahead, row,
                  values);
}

// One key tile for all rows; `values` are those of a Tall, or null.
template <class E, class T>
void attend_keys(const Rows& rows, const Queries<E>& q, const Keys<T>& keys, const E* values,
                 const Scales* scales, Ahead& ahead, int64_t start, int64_t window, Scaling scaling,
                 State& state) {
  alignas(64) float scores[4 * kKeys];
  const auto some = [&]<int R>(int first) {
    attend_rows<R>(rows, first, q, keys, values, scales, ahead, start, window, scaling, scores,
                   state);
  };
  int r = 0;
  for (; r + 4 <= rows.count; r += 4) some.template operator()<4>(r);
  switch (rows.count - r) {
    case 3: return some.template operator()<3>(r);
    case 2: return some.template operator()<2>(r);
    case 1: return some.template operator()<1>(r);
    default: return;
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
    const Vec scale = broadcast(a.v_unit / state.sum[r]);
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

// What `walk` asks for; E is that in which queries are multiplied.
template <class E, class T>
struct Work {
  using State = QUIRE_ISA::State;

  const AttentionArgs& a;
  const AttentionTask& task;
  Rows tile;
  Queries<E> q;

  Work(const AttentionArgs& args, const AttentionTask& what)
      : a(args), task(what), tile{} {
    tile.group = static_cast<int>(a.heads / a.kv_heads);
    tile.count = task.rows * tile.group;
    tile.position = task.position;
    tile.dim = a.head_dim;
    tile.both_ways = a.window == kBothWays;
  }

  int rows() const { return tile.count; }
  int64_t column(int64_t head) const { return head * tile.group * a.head_dim; }

  void load(int64_t head) {
    const int64_t offset = task.row * a.q_stride + column(head);
    if constexpr (kIsFloat<E>) {
      switch (a.q_dtype) {
        case kBFloat16: return load_rows<bf16>(a, tile, offset, q);
        case kFloat16: return load_rows<f16>(a, tile, offset, q);
        default: return load_rows<float>(a, tile, offset, q);
      }
    } else {
      load_rows<bf16>(a, tile, offset, q);
    }
  }

  void attend(const Keys<T>& keys, Ahead& ahead, int64_t start, State& state) {
    if constexpr (sizeof(T) == 1) {
      if (a.k_scale != nullptr) {
        const Scales scales(keys);
        return attend(keys, &scales, ahead, start, state);
      }
    }
    attend(keys, nullptr, ahead, start, state);
  }
  void attend(const Keys<T>& keys, const Scales* scales, Ahead& ahead, int64_t start,
              State& state) {
    const Scaling scaling(a);
    if constexpr (!kIsFloat<T>) {
      if (tile.count >= (a.tuning.tall_rows > 0 ? a.tuning.tall_rows : kTall)) {
        const Tall<E, T> tall(keys);
        return attend_keys(tile, q, tall.keys, tall.values, scales, ahead, start, a.window, scaling,
                           state);
      }
    }
    attend_keys(tile, q, keys, static_cast<const E*>(nullptr), scales, ahead, start, a.window,
                scaling, state);
  }

  void clear(State& state) { QUIRE_ISA::clear(tile, state); }
  void merge(State& total, const State& part) { QUIRE_ISA::merge(tile, total, part); }
  void save(const State& state, float* to) { QUIRE_ISA::save(tile, state, to); }
  void restore(const float* from, State& state) { QUIRE_ISA::restore(tile, from, state); }

  void store(int64_t head, State& state) {
    for (int r = 0; r < tile.count; ++r) order_columns(state.acc + r * kWidth, tile.dim, q.rows);
    const int64_t offset = task.row * a.out_stride + column(head);
    switch (a.q_dtype) {
      case kBFloat16: return store_rows<bf16>(a, tile, offset, state);
      case kFloat16: return store_rows<f16>(a, tile, offset, state);
      default: return store_rows<float>(a, tile, offset, state);
    }
  }
};

template <class E, class T>
void attend_task(const AttentionArgs& a, const AttentionTask& task) {
  Work<E, T> work(a, task);
  walk<T>(a, task, work);
}

}  // namespace

template <class T>
void paged_attention(const AttentionArgs& a, int64_t index) {
  const AttentionTask& task = a.tasks[index];
#if defined(QUIRE_TILES)
  if constexpr (sizeof(T) == 1 || kIsBfloat16<T>) {
    if (attention_fits_tiles(a)) return tiled_attention<T>(a, task);
  }
#endif
#if defined(QUIRE_PAIRS)
  if constexpr (sizeof(T) == 1 || kIsBfloat16<T>) {
    if (fits_pairs(a, 16 * kInterleaved<T>)) return attend_task<typename PairOf<T>::Element, T>(a, task);
  }
#endif
  attend_task<float, T>(a, task);
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
template void paged_attention<f8_e4m3>(const AttentionArgs&, int64_t);
template void paged_attention<f8_e5m2>(const AttentionArgs&, int64_t);

}  // namespace quire::QUIRE_ISA
