// One tile of keys for some query rows: scores, weights, and the sums of weighted values.
#pragma once

#include "attention_codes.h"
#include "attention_tall.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int kHeads = 16;  // max heads that are computed together
constexpr float kLeast = 0x1p-126f;  // of the factors of scores: hidden ones, -inf, times 0 are NaN

// A tile's query rows: floats, or the element type of attention_pairs.h.
template <class E>
struct Queries {
  alignas(64) E rows[kAttentionRows * kWidth];
  float worth[kAttentionRows];  // factors of the rows' scores
  // The same as `score_codes` reads it.
  alignas(64) int8_t codes[kIsFloat<E> ? kAttentionRows * kWidth : 1];
};

// Calls some<R>(r) for rows [0, count), up to four at a time.
template <class Some>
void each_rows(int count, const Some& some) {
  int r = 0;
  for (; r + 4 <= count; r += 4) some.template operator()<4>(r);
  switch (count - r) {
    case 3: return some.template operator()<3>(r);
    case 2: return some.template operator()<2>(r);
    case 1: return some.template operator()<1>(r);
    default: return;
  }
}

// The keys that products read: as they are, or unpacked.
template <class T>
const Keys<T>& plain_keys(const Keys<T>& keys, const Unpacked*) {
  return keys;
}
inline const Keys<int8_t>& plain_keys(const Keys<int8_t>& keys, const Unpacked* room) {
  return room != nullptr ? room->keys : keys;
}

// Adds one key tile to the sums of some rows: scores, weights, weighted values. `row` is a row of the
// task, and `slot` its index here.
template <class E>
struct Step {
  const Rows& rows;
  const Queries<E>& q;
  Ahead& ahead;
  int64_t start;
  Scaling scaling;
  State& state;
  const bool rounds;  // products of attention_codes.h

  Step(const Rows& rows_, const Queries<E>& q_, Ahead& ahead_, int64_t start_,
       const AttentionArgs& a, State& state_)
      : rows(rows_), q(q_), ahead(ahead_), start(start_), scaling(a), state(state_),
        rounds(kIsFloat<E> && a.packed) {}

  alignas(64) float scores[kAttentionRows * kKeys];
  alignas(64) E weights[kIsFloat<E> ? 1 : kAttentionRows * kKeys];
  alignas(64) int32_t whole[kIsInt16<E> || kIsFloat<E> ? kAttentionRows * kWidth : 1];
  alignas(64) float tile_sums[kIsFloat<E> ? kAttentionRows * kWidth : 1];
  alignas(64) int16_t code_weights[kIsFloat<E> ? kAttentionRows * kKeys : 1];
  int32_t totals[kAttentionRows];  // of code_weights
  float keep[kAttentionRows], worth[kAttentionRows];

  E* weights_of(int slot) {
    if constexpr (kIsFloat<E>) {
      return scores + slot * kKeys;
    } else {
      return weights + slot * kKeys;
    }
  }

  template <int R, class K>
  void score(int row, int slot, const Keys<K>& keys, const Scales* of_keys, int begin, int end) {
    if constexpr (kIsFloat<E> && kIsInt8<K>) {
      if (keys.packed()) {
        return score_codes<R>(q.codes + row * kWidth, keys, *of_keys, ahead, begin, end,
                              scores + slot * kKeys);
      }
    }
    QUIRE_ISA::score<R>(q.rows + row * kWidth, keys, of_keys, ahead, begin, end,
                        scores + slot * kKeys);
  }

  template <int R>
  QUIRE_ONCE void weigh(int row, int slot, int begin, int end, const Scales* scales) {
    float* const s = scores + slot * kKeys;
    float factors[R];
    for (int r = 0; r < R; ++r) {
      const float factor = scaling.scale * q.worth[row + r];
      factors[r] = factor < kLeast ? kLeast : factor;
      if (scaling.cap > 0.0f) {
        cap_scores(s + r * kKeys, begin, end, factors[r]);
        factors[r] = scaling.cap;
      }
      const int in_head = (row + r) % rows.count;
      hide(s + r * kKeys, begin, end, rows.low(in_head) - start, rows.high(in_head) - start);
    }
    QUIRE_ISA::weigh<R>(s, begin, end, factors, state.top + row, state.sum + row, keep + slot);
    for (int r = 0; r < R; ++r) {
      worth[slot + r] = round_weights(s + r * kKeys, begin, end, scales, weights_of(slot + r));
      if constexpr (kIsFloat<E>) {
        if (rounds) round_tile(slot + r, begin, end);
      }
    }
  }

  // Rounds a row's weights, and begins its sums of the tile.
  void round_tile(int slot, int begin, int end) {
    float* const w = scores + slot * kKeys + begin;
    worth[slot] = round_to_units(w, end - begin, kWeightUnits);
    const auto size = sizeof(float) * static_cast<uint64_t>(rows.dim);
    if (multiplies_codes(rows.dim)) {
      totals[slot] = order_weights(w, end - begin, code_weights + slot * kKeys + begin);
      __builtin_memset(whole + slot * kWidth, 0, size);
    }
    __builtin_memset(tile_sums + slot * kWidth, 0, size);
  }

  // Ends the tile's sums of a row.
  void end_tile(int row, int slot) {
    join_tile(state.acc + row * kWidth, tile_sums + slot * kWidth, rows.dim, keep[slot], worth[slot]);
  }

  template <int R, class K>
  void add(int row, int slot, const Keys<K>& keys, int begin, int end) {
    if constexpr (kIsFloat<E> && kIsInt8<K>) {
      if (keys.packed()) {
        return add_codes<R>(whole + slot * kWidth, code_weights + slot * kKeys, keys, ahead, begin,
                            end);
      }
    }
    add_weighted<R>(sums_of(row, slot), weights_of(slot), keys, ahead, begin, end);
  }

  Sums sums_of(int row, int slot) {
    if constexpr (kIsFloat<E>) {
      if (rounds) return {tile_sums + slot * kWidth, nullptr, kOnes, kOnes};
    }
    return {state.acc + row * kWidth, kIsInt16<E> ? whole + slot * kWidth : nullptr, keep + slot,
            worth + slot};
  }

  // All rows of the keys' head.
  template <class K>
  QUIRE_ONCE void attend(const Keys<K>& keys, const Scales* scales) {
    const int begin = first_group(keys), end = end_group(keys);
    each_rows(rows.count, [&]<int R>(int r) {
      score<R>(r, 0, keys, scales, begin, end);
      weigh<R>(r, 0, begin, end, scales);
      add<R>(r, 0, keys, begin, end);
      for (int i = 0; rounds && i < R; ++i) end_tile(r + i, i);
    });
  }

  // The same for many rows: all of them read a run of keys, or of columns, while it is in cache.
  template <class T>
  void attend_tall(const Tall<E, T>& tall, const Scales* scales) {
    const int begin = first_group(tall.keys), end = end_group(tall.keys);
    for (int j = begin; j < end; j += kGroup) {
      for (int i = 0; i < kGroup; i += 4) ahead.fetch(ahead.pace);
      each_rows(rows.count, [&]<int R>(int r) {
        score_tall<R>(q.rows + r * kWidth, tall, scales, j, scores + r * kKeys);
      });
    }
    each_rows(rows.count, [&]<int R>(int r) { weigh<R>(r, r, begin, end, scales); });
    for (int64_t d = 0; d < rows.dim; d += kTallColumns) {
      each_rows(rows.count, [&]<int R>(int r) {
        add_tall<R>(sums_of(r, r), weights_of(r), tall, ahead, d);
      });
    }
  }

  // The rows of all heads, in runs of keys: heads follow each other within a block. `room` is where a
  // head's run of packed keys becomes int8, or null if they are read as they are.
  template <class T>
  void attend_heads(Keys<T> keys, Unpacked* room) {
    const int begin = first_group(keys), end = end_group(keys);
    const int block = 1 << keys.shift, run = block > kGroup ? block : kGroup;
    Scales scales[kHeads];
    const bool scaled = keys.k_scales[keys.first >> keys.shift] != nullptr;
    const auto each_head = [&](const auto& begin_head, const auto& some) {
      for (int h = 0; h < rows.heads; ++h) {
        keys.set_head(h);
        begin_head();
        const Scales* const of_head = scaled ? scales + h : nullptr;
        each_rows(rows.count,
                  [&]<int R>(int r) { some.template operator()<R>(h * rows.count + r, of_head); });
      }
    };
    if (scaled) {
      for (int h = 0; h < rows.heads; ++h) {
        keys.set_head(h);
        scales[h].read(keys);
      }
    }
    const auto run_end = [&](int j) { return j + run < end ? j + run : end; };
    const auto unpack_run = [&]([[maybe_unused]] bool values, [[maybe_unused]] int j) {
      if constexpr (kIsInt8<T>) {
        if (room != nullptr) room->read(keys, values, j, run_end(j));
      }
    };
    const auto nothing = [] {};
    const Keys<T>& plain = plain_keys(keys, room);
    for (int j = begin; j < end; j += run) {
      each_head([&] { unpack_run(false, j); },
                [&]<int R>(int r, const Scales* s) { score<R>(r, r, plain, s, j, run_end(j)); });
    }
    each_head(nothing, [&]<int R>(int r, const Scales* s) { weigh<R>(r, r, begin, end, s); });
    for (int j = begin; j < end; j += run) {
      each_head([&] { unpack_run(true, j); },
                [&]<int R>(int r, const Scales*) { add<R>(r, r, plain, j, run_end(j)); });
    }
    for (int r = 0; rounds && r < rows.total(); ++r) {
      if (plain.packed()) {
        order_sums(whole + r * kWidth, totals[r], rows.dim, tile_sums + r * kWidth);
      }
      end_tile(r, r);
    }
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
