// GEMM of 4-bit weights in groups and int8 rows of x (W4A8).
//
// The products of a group are summed exactly in int32; groups are added in float32, in ascending
// order. So every ISA with fused multiply-add gives the same bits, tiles included.
#include "u4_parts.h"

namespace quire::QUIRE_ISA {

namespace {

// Fetches what is `ahead` of a line that R rows pass over.
template <int R>
inline void fetch(const uint8_t* line, int64_t ahead) {
  if constexpr (!kZen) {
    __builtin_prefetch(line + ahead);
  } else if constexpr (R > 1) {
    __builtin_prefetch(line + ahead, 0, 2);
  }
}

inline int32_t four(const int8_t* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// dots_of: c[r][t] = products of R rows of x, `stride` bytes apart, and a group's lines, summed; of
// the columns `lane` … lane + kLanes - 1 of both tiles.
#if defined(__AVX512VNNI__)

constexpr int kMostRows = 6;  // with their sums in registers
using Ints = __m512i;
inline Vec floats(Ints v) { return _mm512_cvtepi32_ps(v); }

template <int R>
inline void dots_of(Ints (&c)[R][2], const int8_t* x, int64_t stride, const uint8_t* lines, int64_t,
                    int64_t group, int64_t ahead) {
  constexpr int kChains = R == 1 ? 4 : R <= 3 ? 2 : 1;  // vpdpbusd takes four cycles
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i sums[kChains][R][2];
  for (auto& chain : sums) {
    for (auto& row : chain) row[0] = row[1] = _mm512_setzero_si512();
  }
  for (int64_t i = 0; i < group; i += 4 * kChains, lines += 64 * kChains) {
    for (int h = 0; h < kChains; ++h) {
      fetch<R>(lines + h * 64, ahead);
      const __m512i both = _mm512_loadu_si512(lines + h * 64);
      const __m512i low = _mm512_and_si512(both, nibble);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
      for (int r = 0; r < R; ++r) {
        const __m512i v = _mm512_set1_epi32(four(x + r * stride + i + 4 * h));
        sums[h][r][0] = _mm512_dpbusd_epi32(sums[h][r][0], low, v);
        sums[h][r][1] = _mm512_dpbusd_epi32(sums[h][r][1], high, v);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < 2; ++t) {
      c[r][t] = sums[0][r][t];
      for (int h = 1; h < kChains; ++h) c[r][t] = _mm512_add_epi32(c[r][t], sums[h][r][t]);
    }
  }
}

#elif defined(__AVX2__)

#if defined(__AVX512BW__)
constexpr int kMostRows = 6;
using Ints = __m512i;
inline Vec floats(Ints v) { return _mm512_cvtepi32_ps(v); }
inline Ints none() { return _mm512_setzero_si512(); }
inline Ints bytes(char v) { return _mm512_set1_epi8(v); }
inline Ints fours(int32_t v) { return _mm512_set1_epi32(v); }
inline Ints bytes_at(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Ints common(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints down4(Ints v) { return _mm512_srli_epi16(v, 4); }
inline Ints pairs_of(Ints q, Ints x) { return _mm512_maddubs_epi16(q, x); }
inline Ints add16(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
inline Ints add_pairs(Ints sum, Ints v) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(v, _mm512_set1_epi16(1)));
}
#else
constexpr int kMostRows = 4;
using Ints = __m256i;
inline Vec floats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Ints none() { return _mm256_setzero_si256(); }
inline Ints bytes(char v) { return _mm256_set1_epi8(v); }
inline Ints fours(int32_t v) { return _mm256_set1_epi32(v); }
inline Ints bytes_at(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Ints common(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints down4(Ints v) { return _mm256_srli_epi16(v, 4); }
inline Ints pairs_of(Ints q, Ints x) { return _mm256_maddubs_epi16(q, x); }
inline Ints add16(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
inline Ints add_pairs(Ints sum, Ints v) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(v, _mm256_set1_epi16(1)));
}
#endif

// 8 lines in 16 bits, where they fit: 8 * 2 * 15 * 128 < 2^15.
template <int R>
inline void dots_of(Ints (&c)[R][2], const int8_t* x, int64_t stride, const uint8_t* lines,
                    int64_t lane, int64_t group, int64_t ahead) {
  const Ints nibble = bytes(15);
  for (auto& row : c) row[0] = row[1] = none();
  for (int64_t i = 0; i < group; i += 32) {
    Ints sums[R][2];
    for (auto& row : sums) row[0] = row[1] = none();
    for (int64_t line = 0; line < 8; ++line) {
      const uint8_t* at = lines + i * 16 + line * 64 + lane * 4;
      fetch<R>(at, ahead);
      const Ints both = bytes_at(at);
      const Ints low = common(both, nibble), high = common(down4(both), nibble);
      for (int r = 0; r < R; ++r) {
        const Ints v = fours(four(x + r * stride + i + line * 4));
        sums[r][0] = add16(sums[r][0], pairs_of(low, v));
        sums[r][1] = add16(sums[r][1], pairs_of(high, v));
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < 2; ++t) c[r][t] = add_pairs(c[r][t], sums[r][t]);
    }
  }
}

#else

constexpr int kMostRows = 4;
typedef int32_t Ints __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t Bytes __attribute__((vector_size(16)));  // two each
inline Vec floats(Ints v) { return __builtin_convertvector(v, Vec); }
inline Shorts pairs(int32_t first, int32_t second) {
  const int32_t both = (first & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(second) << 16);
  return reinterpret_cast<Shorts>(Ints{both, both, both, both});
}

// 8 lines in 16 bits, as above: a lane has every other byte of its row.
template <int R>
inline void dots_of(Ints (&c)[R][2], const int8_t* x, int64_t stride, const uint8_t* lines,
                    int64_t lane, int64_t group, int64_t) {
  for (auto& row : c) row[0] = row[1] = Ints{};
  for (int64_t i = 0; i < group; i += 32) {
    Shorts sums[R][2] = {};
    for (int64_t line = 0; line < 8; ++line) {
      Bytes both;
      __builtin_memcpy(&both, lines + i * 16 + line * 64 + lane * 4, sizeof both);
      const auto low = reinterpret_cast<Shorts>(both & 15);
      const auto high = reinterpret_cast<Shorts>(both >> 4 & 15);
      const auto odd_low = reinterpret_cast<Shorts>(both >> 8 & 15);
      const auto odd_high = reinterpret_cast<Shorts>(both >> 12);
      for (int r = 0; r < R; ++r) {
        const int8_t* v = x + r * stride + i + line * 4;
        const Shorts even = pairs(v[0], v[2]), odd = pairs(v[1], v[3]);
        sums[r][0] += low * even + odd_low * odd;
        sums[r][1] += high * even + odd_high * odd;
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < 2; ++t) {
        const Ints both = reinterpret_cast<Ints>(sums[r][t]);
        c[r][t] += (both << 16 >> 16) + (both >> 16);
      }
    }
  }
}

#endif

// sums[R][32] of the rows from `first` on and a block.
template <int R>
void block(const GemmArgs& a, const U4Input& x, int64_t first, const uint8_t* weight, float* sums) {
  const int64_t groups = u4_groups(a), ahead = tuned(a.tuning.ahead_bytes, kStreamAhead);
  const int8_t* q = x.q + first * x.stride;
  const float* x_sum = x.sum + first * groups;
  Vec total[16 / kLanes][R][2];
  for (auto& lanes : total) {
    for (auto& row : lanes) row[0] = row[1] = zero();
  }
  for (int64_t g = 0; g < groups; ++g, q += a.group, ++x_sum, weight += u4_group_bytes(a)) {
    fetch<R>(weight, ahead);
    fetch<R>(weight + 64, ahead);
    for (int64_t lane = 0; lane < 16; lane += kLanes) {
      Ints dots[R][2];
      dots_of(dots, q, x.stride, weight + kU4HeadBytes, lane, a.group, ahead);
      for (int t = 0; t < 2; ++t) {
        const U4GroupEnd end(a, weight, t * 16 + lane);
        for (int r = 0; r < R; ++r) {
          Vec& sum = total[lane / kLanes][r][t];
          sum = end.add_to(sum, floats(dots[r][t]), x_sum[r * groups]);
        }
      }
    }
  }
  for (int64_t lane = 0; lane < 16; lane += kLanes) {
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < 2; ++t) {
        store(sums + r * kBlockRows + t * 16 + lane, total[lane / kLanes][r][t]);
      }
    }
  }
}

// block<rows>, 1 <= rows <= R.
template <int R>
inline void block_of(int64_t rows, const GemmArgs& a, const U4Input& x, int64_t r,
                     const uint8_t* weight, float* sums) {
  if constexpr (R > 1) {
    if (rows < R) return block_of<R - 1>(rows, a, x, r, weight, sums);
  }
  block<R>(a, x, r, weight, sums);
}

int64_t scratch_bytes(const GemmArgs& a) {
  const U4Input x(a);
  const int64_t rows = round_up(a.rows, kU4TileRows);
  return rows * x.stride + 4 * a.rows * (1 + u4_groups(a));
}

int64_t prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }

void prepare(const GemmArgs& a, int64_t index) {
  const U4Input x(a);
  const int64_t groups = u4_groups(a), last = smaller(a.rows, (index + 1) * kPrepareRows);
  for (int64_t r = index * kPrepareRows; r < last; ++r) {
    int8_t* q = x.q + r * x.stride;
    x.scale[r] = quantize_row(a, r, q, kStepBytes);
    for (int64_t i = round_up(a.k, kStepBytes); i < groups * a.group; ++i) q[i] = 0;
    for (int64_t g = 0; g < groups; ++g, q += a.group) {
      int32_t sum = 0;
      for (int64_t i = 0; i < a.group; ++i) sum += q[i];
      x.sum[r * groups + g] = static_cast<float>(sum);
    }
  }
}

int64_t tasks(const GemmArgs& a) {
  if (a.rows == 0) return 0;
  const U4Cut cut(a);
  return cut.parts * cut.chunks;
}

void task(const GemmArgs& a, int64_t index) {
  const U4Cut cut(a);
  const U4Input x(a);
  const int64_t first = index % cut.chunks * kU4Chunk, last = smaller(a.rows, first + kU4Chunk);
  const int64_t from = index / cut.chunks * cut.task_blocks * kBlockRows;
  const int64_t to = smaller(a.n, from + cut.task_blocks * kBlockRows);
  const uint8_t* weight = static_cast<const uint8_t*>(a.weight) + from / kBlockRows * u4_block_bytes(a);
  const int64_t most = smaller(tuned(a.tuning.pass_rows, kMostRows), kMostRows);
  alignas(64) float sums[kMostRows * kBlockRows];
  for (int64_t n0 = from; n0 < to; n0 += kBlockRows, weight += u4_block_bytes(a)) {
    for (int64_t r = first; r < last; r += most) {
      const int64_t rows = smaller(most, last - r);
      block_of<kMostRows>(rows, a, x, r, weight, sums);
      u4_finish(a, x, r, rows, n0, sums);
    }
  }
}

}  // namespace

const Gemm kGemmU4 = {scratch_bytes, prepare_tasks, prepare, tasks, task};

}  // namespace quire::QUIRE_ISA
