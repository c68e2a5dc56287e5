// Paged attention with a running softmax (Milakov and Gimelshein 2018; Dao et al. 2022), in float.
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

constexpr float kLog2E = 1.44269504f;
constexpr float kNothing = -1e30f;  // `top` of a row that has seen no key: exp2(kNothing - x) is 0
constexpr int kKeys = kAttentionKeys;
constexpr int kWidth = kAttentionHeadDim;
constexpr int kGroup = static_cast<int>(kLanes);  // keys whose dot products are reduced together

static_assert(kKeys % (2 * kLanes) == 0 && kAttentionPartition % kKeys == 0);

// A partial result of softmax(s) v, s in units of log 2: acc / sum, both times 2^-top.
struct State {
  float top[kAttentionRows];
  float sum[kAttentionRows];
  alignas(64) float acc[kAttentionRows * kWidth];

  void clear(int rows) {
    for (int r = 0; r < rows; ++r) {
      top[r] = kNothing;
      sum[r] = 0.0f;
    }
    __builtin_memset(acc, 0, sizeof(float) * kWidth * static_cast<uint64_t>(rows));
  }
};

// Where the keys and values of one key tile lie; keys outside [first, last) stand for any key.
template <class T>
struct KeyTile {
  const T* k[kKeys];
  const T* v[kKeys];
  float k_scale[kKeys], v_scale[kKeys];  // of int8
  int first, last;
};

struct Rows {
  int count;
  int group;         // heads a position
  int64_t position;  // of row 0
  int64_t dim;

  int64_t at(int r) const { return position + r / group; }
};

float exp2(float x) { return largest(exp2(broadcast(x))); }

template <class T>
void find_keys(const AttentionArgs& a, const int32_t* table, int64_t head, int64_t start,
               int64_t begin, int64_t end, KeyTile<T>& keys) {
  keys.first = static_cast<int>(begin > start ? begin - start : 0);
  keys.last = static_cast<int>(end - start < kKeys ? end - start : kKeys);
  const int64_t offset = head * a.block_size * a.head_dim;
  for (int j = 0; j < kKeys; ++j) {
    const int inside = j < keys.first ? keys.first : j < keys.last ? j : keys.last - 1;
    const int64_t position = start + inside;
    const int64_t block = table[position / a.block_size];
    const int64_t at = offset + position % a.block_size * a.head_dim;
    keys.k[j] = static_cast<const T*>(a.k) + block * a.k_block_stride + at;
    keys.v[j] = static_cast<const T*>(a.v) + block * a.v_block_stride + at;
    if constexpr (kIsInt8<T>) {
      const int64_t slot = (block * a.kv_heads + head) * a.block_size + position % a.block_size;
      keys.k_scale[j] = as_float(a.k_scale[slot]);
      keys.v_scale[j] = as_float(a.v_scale[slot]);
    }
  }
}

// scores[r][j] = q[r] . k[j] for R rows and all kLanes-wide groups of keys that touch the tile's.
template <int R, class T>
void score(const float* q, const KeyTile<T>& keys, int64_t dim, float* scores) {
  for (int j = keys.first / kGroup * kGroup; j < keys.last; j += kGroup) {
    Vec part[R][kGroup];
    for (int i = 0; i < kGroup; i += 4) {
      const T* const* k = keys.k + j + i;
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

// acc[r] = acc[r] * keep[r] + sum over keys of weight[r][j] * v[j][d...] for R rows and C vectors;
// acc points at column d. With n != 0 only the first n < kLanes columns of one vector count.
template <int R, int C, class T>
void add_values(float* acc, const float* weights, const float* keep, const KeyTile<T>& keys,
                int64_t d, int64_t n) {
  Vec s[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      s[r][c] = mul(load(acc + r * kWidth + c * kLanes), broadcast(keep[r]));
    }
  }
  for (int j = keys.first; j < keys.last; ++j) {
    const T* v = keys.v[j] + d;
    Vec x[C];
    for (int c = 0; c < C; ++c) x[c] = n != 0 ? load(v, n) : load(v + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(weights[r * kKeys + j]);
      for (int c = 0; c < C; ++c) s[r][c] = fma(weight, x[c], s[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(acc + r * kWidth + c * kLanes, s[r][c]);
  }
}

constexpr int kColumns = kLanes >= 16 ? 4 : 2;  // accumulators of add_values stay in registers

// One key tile for R rows from `first` on.
template <int R, class T>
void attend_rows(const Rows& rows, int first, const float* q, const KeyTile<T>& keys, int64_t start,
                 int64_t window, float scale, float* scores, State& state) {
  score<R>(q + first * kWidth, keys, rows.dim, scores);
  float keep[R];
  for (int r = 0; r < R; ++r) {
    const int64_t high = rows.at(first + r) - start;
    const int64_t low = window > 0 ? high - window + 1 : 0;
    keep[r] = weigh(scores + r * kKeys, low, high, scale, state.top[first + r],
                    state.sum[first + r]);
    if constexpr (kIsInt8<T>) {
      float* weights = scores + r * kKeys;
      for (int j = 0; j < kKeys; j += kGroup) {
        store(weights + j, mul(load(weights + j), load(keys.v_scale + j)));
      }
    }
  }
  float* acc = state.acc + first * kWidth;
  int64_t d = 0;
  for (; d + kColumns * kLanes <= rows.dim; d += kColumns * kLanes) {
    add_values<R, kColumns>(acc + d, scores, keep, keys, d, 0);
  }
  for (; d + kLanes <= rows.dim; d += kLanes) add_values<R, 1>(acc + d, scores, keep, keys, d, 0);
  if (d < rows.dim) add_values<R, 1>(acc + d, scores, keep, keys, d, rows.dim - d);
}

template <class T>
void attend(const Rows& rows, const float* q, const KeyTile<T>& keys, int64_t start, int64_t window,
            float scale, State& state) {
  alignas(64) float scores[4 * kKeys];
  int r = 0;
  for (; r + 4 <= rows.count; r += 4) {
    attend_rows<4>(rows, r, q, keys, start, window, scale, scores, state);
  }
  switch (rows.count - r) {
    case 3: return attend_rows<3>(rows, r, q, keys, start, window, scale, scores, state);
    case 2: return attend_rows<2>(rows, r, q, keys, start, window, scale, scores, state);
    case 1: return attend_rows<1>(rows, r, q, keys, start, window, scale, scores, state);
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

// q[r] of the tile's rows, as floats.
template <class Q>
void load_rows(const AttentionArgs& a, const Rows& rows, int64_t offset, float* q) {
  for (int r = 0; r < rows.count; ++r) {
    const Q* from = static_cast<const Q*>(a.q) + offset + r / rows.group * a.q_stride +
                    r % rows.group * rows.dim;
    int64_t d = 0;
    for (; d + kLanes <= rows.dim; d += kLanes) store(q + r * kWidth + d, load(from + d));
    if (d < rows.dim) store(q + r * kWidth + d, load(from + d, rows.dim - d));
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

template <class T>
void attend_tile(const AttentionArgs& a, const AttentionTile& tile, int64_t head) {
  const int group = static_cast<int>(a.heads / a.kv_heads);
  const Rows rows{tile.rows * group, group, tile.position, a.head_dim};
  const int64_t column = head * group * a.head_dim;

  alignas(64) float q[kAttentionRows * kWidth];
  switch (a.q_dtype) {
    case kBFloat16: load_rows<bf16>(a, rows, tile.row * a.q_stride + column, q); break;
    case kFloat16: load_rows<f16>(a, rows, tile.row * a.q_stride + column, q); break;
    default: load_rows<float>(a, rows, tile.row * a.q_stride + column, q);
  }
  State states[2];
  State *part = &states[0], *total = nullptr;
  part->clear(rows.count);
  const int32_t* table = a.block_tables + tile.seq * a.block_table_stride;
  const int64_t end = tile.position + tile.rows;
  const int64_t begin = a.window > 0 && tile.position >= a.window ? tile.position - a.window + 1 : 0;
  for (int64_t start = begin / kKeys * kKeys; start < end; start += kKeys) {
    if (start % kAttentionPartition == 0 && start > begin) {
      if (total == nullptr) {
        total = part;
        part = &states[1];
      } else {
        merge(rows, *total, *part);
      }
      part->clear(rows.count);
    }
    KeyTile<T> keys;
    find_keys(a, table, head, start, begin, end, keys);
    attend(rows, q, keys, start, a.window, a.scale * kLog2E, *part);
  }
  if (total != nullptr) merge(rows, *total, *part);
  const State& result = total != nullptr ? *total : *part;
  switch (a.q_dtype) {
    case kBFloat16: store_rows<bf16>(a, rows, tile.row * a.out_stride + column, result); break;
    case kFloat16: store_rows<f16>(a, rows, tile.row * a.out_stride + column, result); break;
    default: store_rows<float>(a, rows, tile.row * a.out_stride + column, result);
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
  for (; head < end; ++head) attend_tile<T>(a, tile, head);
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
