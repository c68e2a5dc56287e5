// GEMM of int8 weights and int8 rows of x (W8A8), without tiles.
//
// Sums are exact in int32: k is at most 65536 (PackedWeight), and 255 * 127 * 65536 < 2^31.
#include "gemm_rows.h"
#if defined(__AVX512VNNI__)
#include "gemm_wide.h"
#elif defined(QUIRE_NEON)
#include "gemm_neon.h"
#endif

namespace quire::QUIRE_ISA {

namespace {

// X: what the kernel reads x as, in kValueBytes per value. made_ready(row, k): k int8 at the end of these
// become a row of X; kStepBytes more follow it.
#if defined(__AVX512VNNI__)

using X = int8_t;
constexpr int kMostRows = kWideRows;
constexpr int64_t kValueBytes = 1;

inline int32_t four(const X* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// vpdpbusd wants x unsigned: 128 is added to x, and 128 * row_sum is what that adds to the sum.
inline void made_ready(X* row, int64_t k) {
  for (int64_t i = 0; i < k; ++i) row[i] = static_cast<X>(row[i] ^ -128);
}

struct Wide {
  using X = int8_t;
  static constexpr int64_t kLineBytes = 64;
  static __m512i line(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void add(__m512i& sum, __m512i w, __m512i x) {
    __asm__("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(w), "v"(x));
  }
};

template <int R>
void add_narrow(__m512i (&c)[R][2], const Pass<X>& p) {
  const uint8_t* line = p.weight;
  for (int64_t i = 0; i < p.k; i += 64) {
    QUIRE_UNROLL for (int tile = 0; tile < 2; ++tile) {
      for (const int8_t* x = p.x + i; x < p.x + i + 64; x += 4, line += 64) {
        fetch(line, p.ahead);
        const __m512i w = _mm512_loadu_si512(line);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          const __m512i v = _mm512_set1_epi32(four(x + r * p.stride));
          c[r][tile] = _mm512_dpbusd_epi32(c[r][tile], v, w);
        }
      }
    }
  }
}

template <int R>
QUIRE_PASS void block(int32_t* sums, const Pass<X>& p) {
  __m512i c[R][2];
  QUIRE_UNROLL for (auto& row : c) {
    row[0] = row[1] = _mm512_setzero_si512();
  }
  if constexpr (R > kNarrowRows) {
    add_wide<Wide>(c, p);
  } else {
    add_narrow(c, p);
  }
  QUIRE_UNROLL for (int r = 0; r < R; ++r) {
    for (int h = 0; h < 2; ++h) {
      const __m512i extra = _mm512_slli_epi32(_mm512_loadu_si512(p.row_sum + h * 16), 7);
      _mm512_storeu_si512(sums + r * kBlockRows + h * 16, _mm512_sub_epi32(c[r][h], extra));
    }
  }
}

#elif defined(__AVX2__)

// The instruction for bytes multiplies unsigned by signed ones. With m = -1 for negative x, else 0,
//   x · w = |x| · (w ^ m) - m · |x|,
// and 16 bits hold two of these products, which are at least -128 · 128. A row of X has 4 magnitudes and
// their 4 masks in turns, and at its end the sum of the last terms.
using X = uint8_t;
constexpr int kMostRows = 5;  // whose sums, with two vectors of W and those of x, fill the registers
constexpr int64_t kValueBytes = 2;
#if defined(__AVX512BW__)
using Ints = __m512i;
inline Ints fours(int32_t v) { return _mm512_set1_epi32(v); }
inline Ints read(const void* p) { return _mm512_loadu_si512(p); }
inline void write(void* p, Ints v) { _mm512_storeu_si512(p, v); }
inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints products(Ints size, Ints mask, Ints w) {
  const Ints pairs = _mm512_maddubs_epi16(size, _mm512_xor_si512(w, mask));
  return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#else
using Ints = __m256i;
inline Ints fours(int32_t v) { return _mm256_set1_epi32(v); }
inline Ints read(const void* p) { return _mm256_loadu_si256(static_cast<const Ints*>(p)); }
inline void write(void* p, Ints v) { _mm256_storeu_si256(static_cast<Ints*>(p), v); }
inline Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints products(Ints size, Ints mask, Ints w) {
  const Ints pairs = _mm256_maddubs_epi16(size, _mm256_xor_si256(w, mask));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#endif

inline int32_t four(const X* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return bytes;
}

// The sums of one tile are in registers, those of the other one in memory.
template <int R>
QUIRE_PASS void block(int32_t* sums, const Pass<X>& p) {
  constexpr int64_t kBytes = sizeof(Ints), kVecs = 64 / kBytes;  // vectors of a line
  Ints c[2][R][kVecs];
  QUIRE_UNROLL for (auto& tile : c) {
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      const Ints extra = fours(four(p.x + r * p.stride + p.k * kValueBytes));
      QUIRE_UNROLL for (Ints& v : tile[r]) v = extra;
    }
  }
  const uint8_t* line = p.weight;
  for (const X* x = p.x; x < p.x + p.k * kValueBytes; x += 64 * kValueBytes) {
    for (auto& tile : c) {
      Ints now[R][kVecs];
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        QUIRE_UNROLL for (int64_t v = 0; v < kVecs; ++v) now[r][v] = tile[r][v];
      }
      const X* at = x;
      for (int left = 16; left > 0; --left, at += 4 * kValueBytes, line += 64) {
        fetch(line, p.ahead);
        Ints w[kVecs];
        QUIRE_UNROLL for (int64_t v = 0; v < kVecs; ++v) w[v] = read(line + v * kBytes);
        const X* row = at;
        QUIRE_UNROLL for (int r = 0; r < R; ++r, row += p.stride) {
          const Ints size = fours(four(row)), mask = fours(four(row + 4));
          QUIRE_UNROLL for (int64_t v = 0; v < kVecs; ++v) {
            now[r][v] = plus(now[r][v], products(size, mask, w[v]));
            __asm__("" : "+v"(now[r][v]), "+r"(row));  // one row's x after the other's, or sums spill
          }
        }
      }
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        QUIRE_UNROLL for (int64_t v = 0; v < kVecs; ++v) tile[r][v] = now[r][v];
      }
    }
  }
  for (int tile = 0; tile < 2; ++tile) {
    for (int r = 0; r < R; ++r) {
      int32_t* const out = sums + r * kBlockRows + tile * 16;
      for (int64_t v = 0; v < kVecs; ++v) write(out + v * (kBytes / 4), c[tile][r][v]);
    }
  }
}

inline void made_ready(X* row, int64_t k) {
  __m128i extra = _mm_setzero_si128();
  for (int64_t i = 0; i < k; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + k + i));
    const __m128i size = _mm_abs_epi8(bytes), mask = _mm_cmpgt_epi8(_mm_setzero_si128(), bytes);
    auto* out = reinterpret_cast<__m128i*>(row + kValueBytes * i);
    _mm_storeu_si128(out, _mm_unpacklo_epi32(size, mask));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi32(size, mask));
    extra = _mm_add_epi32(extra, _mm_sad_epu8(_mm_and_si128(size, mask), _mm_setzero_si128()));
  }
  const int32_t sum = _mm_cvtsi128_si32(extra) + _mm_extract_epi32(extra, 2);
  __builtin_memcpy(row + kValueBytes * k, &sum, sizeof sum);
}

#else

using X = int8_t;
constexpr int64_t kValueBytes = 1;
inline void made_ready(X*, int64_t) {}

#if defined(__ARM_FEATURE_DOTPROD) && defined(QUIRE_NEON)

constexpr int kMostRows = 4;  // GCC spills five

template <int R>
void block(int32_t* sums, const Pass<X>& p) {
  neon_block<S8Kind, R>(sums, p);
}

#elif defined(QUIRE_NEON)

constexpr int kMostRows = 2;

// Two products of each sign fit into 16 bits: x is at most 127, and 2 * 127 * 128 < 2^15. Neighbouring
// columns have a sum of their own until the end.
template <int R>
QUIRE_PASS void block(int32_t* sums, const Pass<X>& p) {
  int32x4_t c[2][R][8];
  QUIRE_UNROLL for (auto& tile : c) {
    QUIRE_UNROLL for (auto& row : tile) {
      QUIRE_UNROLL for (auto& v : row) v = vdupq_n_s32(0);
    }
  }
  const uint8_t* line = p.weight;
  for (int64_t i = 0; i < p.k; i += kStepBytes) {
    for (auto& tile : c) {
      int32x4_t now[R][8];
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        QUIRE_UNROLL for (int v = 0; v < 8; ++v) now[r][v] = tile[r][v];
      }
      for (const X* x = p.x + i; x < p.x + i + kStepBytes; x += 8, line += 128) {
        fetch(line, p.ahead);
        fetch(line + 64, p.ahead);
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          const int32x2_t both = vreinterpret_s32_s8(vld1_s8(x + r * p.stride));
          const int8x8_t first = vreinterpret_s8_s32(vdup_lane_s32(both, 0));
          const int8x8_t second = vreinterpret_s8_s32(vdup_lane_s32(both, 1));
          QUIRE_UNROLL for (int v = 0; v < 8; ++v) {
            const auto* w = reinterpret_cast<const int8_t*>(line) + v * 8;
            const int16x8_t pairs = vmlal_s8(vmull_s8(vld1_s8(w), first), vld1_s8(w + 64), second);
            now[r][v] = vpadalq_s16(now[r][v], pairs);
          }
        }
      }
      QUIRE_UNROLL for (int r = 0; r < R; ++r) {
        QUIRE_UNROLL for (int v = 0; v < 8; ++v) tile[r][v] = now[r][v];
      }
    }
  }
  for (int tile = 0; tile < 2; ++tile) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < 4; ++v) {
        const int32x4_t four = vpaddq_s32(c[tile][r][2 * v], c[tile][r][2 * v + 1]);
        vst1q_s32(sums + r * kBlockRows + tile * 16 + v * 4, four);
      }
    }
  }
}

#else

constexpr int kMostRows = 1;

template <int R>
void block(int32_t* sums, const Pass<X>& p) {
  for (int64_t j = 0; j < kBlockRows; ++j) sums[j] = 0;
  for (int64_t i = 0; i < p.k; i += 4) {
    const uint8_t* line = p.weight + i / 64 * (2 * kTileBytes) + i % 64 / 4 * 64;
    const int8_t* x = p.x + i;
    for (int64_t j = 0; j < kBlockRows; ++j) {
      const auto* w = reinterpret_cast<const int8_t*>(line + j / 16 * kTileBytes + j % 16 * 4);
      sums[j] += w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3];
    }
  }
}

#endif
#endif

int64_t padded_k(const GemmArgs& a) { return round_up(a.k, kStepBytes); }
// Not a power of two: the rows of a pass share no cache set.
int64_t copied_stride(const GemmArgs& a) { return kValueBytes * padded_k(a) + kStepBytes; }
X* rows_of_x(const GemmArgs& a) { return reinterpret_cast<X*>(x_s8(a)); }

struct S8 {
  using X = QUIRE_ISA::X;
  using Sum = int32_t;
  static constexpr int kMost = kMostRows, kStreamRows = 2;

  static Input<X> input(const GemmArgs& a) {
    const int64_t k = padded_k(a);
    return {rows_of_x(a), copied_stride(a), k, k * kBlockRows};
  }

  template <int R>
  static void block(int32_t* sums, const Pass<X>& p) {
    QUIRE_ISA::block<R>(sums, p);
  }
};

int64_t scratch_bytes(const GemmArgs& a) {
  return round_up(a.rows * 4, 64) + a.rows * copied_stride(a);
}

int64_t prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }

void prepare(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows), k = padded_k(a);
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    X* row = rows_of_x(a) + r * copied_stride(a);
    auto* q = reinterpret_cast<int8_t*>(row) + (kValueBytes - 1) * k;
    x_scales(a)[r] = quantize_row(a, r, q, kStepBytes);
    made_ready(row, k);
  }
}

}  // namespace

const Gemm kGemmS8 = {scratch_bytes, prepare_tasks, prepare, row_tasks<S8>, row_task<S8>};

}  // namespace quire::QUIRE_ISA
