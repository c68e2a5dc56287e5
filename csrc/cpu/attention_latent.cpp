// Attention over latents. A tile of keys is read once for all rows of a task: up to kAttentionRows rows
// of some positions and heads, which is why even one token's attention is a product of matrices.
//
//   keys    [128, rope + latent]  as floats, or as bfloat16 where its dot products exist
//   scores  [rows, 128]           = queries x keys^T
//   weights [rows, 128]           = exp2(...)
//   sums    [rows, latent]       += weights x latents
//
// A row's bits depend only on that row: tiles begin at multiples of kAttentionKeys, partial results of
// kAttentionPartition keys are merged in ascending order, and hidden keys have weight 0.
#include "attention_latent_parts.h"

namespace quire::QUIRE_ISA {

namespace {

// On floats.
struct FloatTile : TileOf<float> {
  using TileOf::TileOf;

  void finish_keys(int last) const { clear_keys(last, (last + kGroup - 1) / kGroup * kGroup); }
  void finish_queries(int) const {}

  // scores[row, j] = q[row] . k[j] for j < end, a multiple of kGroup.
  void score(int rows, int end, float* scores) const {
    for (int j = 0; j < end; j += kGroup) {
      each_rows(rows, [&]<int R>(int row) { score_group<R>(row, j, scores + row * kKeys + j); });
    }
  }

  // acc[row] = acc[row] · keep[row] + the sum of weights[row, j] · latent[j].
  void add_values(int rows, int last, float* weights, const float* keep, float* acc) const {
    int64_t d = 0;
    const auto add = [&]<int C>() {
      each_rows(rows, [&]<int R>(int row) {
        add_columns<R, C>(d, last, weights + row * kKeys, keep + row, acc + row * columns + d);
      });
    };
    for (; d + kColumns * kLanes <= columns; d += kColumns * kLanes) add.template operator()<kColumns>();
    for (; d < columns; d += kLanes) add.template operator()<1>();
  }

  template <int R>
  QUIRE_ONCE void score_group(int row, int j, float* scores) const {
    Vec folded[R][kGroup / 4];
    for (int i = 0; i < kGroup; i += 4) {
      const float* const key = k + (j + i) * width;
      Vec s[R][4];
      for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();
      for (int64_t d = 0; d < width; d += kLanes) {
        Vec x[4];
        for (int c = 0; c < 4; ++c) x[c] = load(key + c * width + d);
        for (int r = 0; r < R; ++r) {
          const Vec y = load(q + (row + r) * width + d);
          for (int c = 0; c < 4; ++c) s[r][c] = fma(y, x[c], s[r][c]);
        }
      }
      for (int r = 0; r < R; ++r) folded[r][i / 4] = fold(s[r]);
    }
    for (int r = 0; r < R; ++r) store(scores + r * kKeys, join(folded[r]));
  }

  template <int R, int C>
  QUIRE_ONCE void add_columns(int64_t d, int last, const float* weights, const float* keep,
                              float* acc) const {
    Vec s[R][C];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        s[r][c] = mul(load(acc + r * columns + c * kLanes), broadcast(keep[r]));
      }
    }
    const float* value = k + rope + d;
    for (int j = 0; j < last; ++j, value += width) {
      Vec x[C];
      for (int c = 0; c < C; ++c) x[c] = load(value + c * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec weight = broadcast(weights[r * kKeys + j]);
        for (int c = 0; c < C; ++c) s[r][c] = fma(weight, x[c], s[r][c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) store(acc + r * columns + c * kLanes, s[r][c]);
    }
  }
};

#if defined(__AVX512BF16__)

// On pairs of bfloat16.
struct PairTile : PairsOf {
  using PairsOf::PairsOf;

  void finish_queries(int) const {}

  void score(int rows, int end, float* scores) const {
    for (int j = 0; j < end; j += kGroup) {
      each_rows(rows, [&]<int R>(int row) { score_group<R>(row, j, scores + row * kKeys + j); });
    }
  }

  static Vec dot(Vec s, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  template <int R>
  QUIRE_ONCE void score_group(int row, int j, float* scores) const {
    Vec folded[R][kGroup / 4];
    for (int i = 0; i < kGroup; i += 4) {
      const bf16* const key = k + (j + i) * width;
      Vec s[R][4];
      QUIRE_UNROLLED for (int r = 0; r < R; ++r) s[r][0] = s[r][1] = s[r][2] = s[r][3] = zero();
      for (int64_t d = 0; d < width; d += 32) {
        __m512i x[4];
        QUIRE_UNROLLED for (int c = 0; c < 4; ++c) x[c] = _mm512_loadu_si512(key + c * width + d);
        QUIRE_UNROLLED for (int r = 0; r < R; ++r) {
          const __m512i y = _mm512_loadu_si512(q + (row + r) * width + d);
          QUIRE_UNROLLED for (int c = 0; c < 4; ++c) s[r][c] = dot(s[r][c], y, x[c]);
        }
      }
      for (int r = 0; r < R; ++r) folded[r][i / 4] = fold(s[r]);
    }
    for (int r = 0; r < R; ++r) store(scores + r * kKeys, join(folded[r]));
  }

  void add_values(int rows, int last, const float* weights, const float* keep, float* acc) const {
    round_weights(rows, last, weights);
    int64_t d = 0;
    const auto add = [&]<int C>() {
      each_rows(rows, [&]<int R>(int row) {
        add_columns<R, C>(d, last, w + row * kKeys, keep + row, acc + row * columns + d);
      });
    };
    for (; d + kColumns * kLanes <= columns; d += kColumns * kLanes) add.template operator()<kColumns>();
    for (; d < columns; d += kLanes) add.template operator()<1>();
  }

  template <int R, int C>
  QUIRE_ONCE void add_columns(int64_t d, int last, const bf16* weights, const float* keep,
                              float* acc) const {
    Vec s[R][C];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        s[r][c] = mul(load(acc + r * columns + c * kLanes), broadcast(keep[r]));
      }
    }
    const bf16* value = v + 2 * d;
    for (int j = 0; j < last; j += 2, value += 2 * columns) {
      __m512i x[C];
      QUIRE_UNROLLED for (int c = 0; c < C; ++c) x[c] = _mm512_loadu_si512(value + 2 * kLanes * c);
      QUIRE_UNROLLED for (int r = 0; r < R; ++r) {
        int pair;
        __builtin_memcpy(&pair, weights + r * kKeys + j, sizeof pair);
        const __m512i weight = _mm512_set1_epi32(pair);
        QUIRE_UNROLLED for (int c = 0; c < C; ++c) s[r][c] = dot(s[r][c], weight, x[c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) store(acc + r * columns + c * kLanes, s[r][c]);
    }
  }
};

template <class T>
constexpr bool kExactInBfloat16 = sizeof(T) == 1;
template <>
constexpr bool kExactInBfloat16<bf16> = true;

#endif

}  // namespace

template <class T>
void latent_attention(const LatentArgs& a, int64_t index, float* room) {
  const AttentionTask& task = a.base.tasks[index];
#if defined(__AVX512BF16__)
  if constexpr (kExactInBfloat16<T>) {
    if (a.base.q_dtype == kBFloat16) return Work<T, PairTile>(a, task, room).run();
  }
#endif
  Work<T, FloatTile>(a, task, room).run();
}

template void latent_attention<float>(const LatentArgs&, int64_t, float*);
template void latent_attention<bf16>(const LatentArgs&, int64_t, float*);
template void latent_attention<f16>(const LatentArgs&, int64_t, float*);
template void latent_attention<int8_t>(const LatentArgs&, int64_t, float*);
template void latent_attention<f8_e4m3>(const LatentArgs&, int64_t, float*);
template void latent_attention<f8_e5m2>(const LatentArgs&, int64_t, float*);

}  // namespace quire::QUIRE_ISA
