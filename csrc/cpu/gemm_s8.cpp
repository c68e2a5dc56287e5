// GEMM of int8 weights and int8 rows of x (W8A8), without tiles.
//
// Sums are exact in int32: k is at most 65536 (PackedWeight), and 255 * 127 * 65536 < 2^31.
#include "gemm_rows.h"
#if defined(__AVX512VNNI__)
#include "gemm_wide.h"
#endif

namespace quire::QUIRE_ISA {

namespace {

// X: what the kernel reads x as. made_ready(row, k): k values, quantized to int8 at the end of the
// row's place, become a row of X.
#if defined(__AVX512VNNI__)

using X = int8_t;
constexpr int kMostRows = kWideRows;

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

// No instruction multiplies signed bytes by signed bytes: both sides are widened to 16 bits, x once,
// when it is quantized, W as it passes by.
using X = int16_t;
constexpr int kMostRows = 6;
#if defined(__AVX512BW__)
using Ints = __m512i;
inline Ints none() { return _mm512_setzero_si512(); }
inline Ints widened(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Ints fours(int64_t v) { return _mm512_set1_epi64(v); }
inline Ints add_products(Ints sum, Ints a, Ints b) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}
#else
using Ints = __m256i;
inline Ints none() { return _mm256_setzero_si256(); }
inline Ints widened(const uint8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints fours(int64_t v) { return _mm256_set1_epi64x(v); }
inline Ints add_products(Ints sum, Ints a, Ints b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
#endif
constexpr int64_t kParts = 128 / sizeof(Ints);  // of a line, widened

inline int64_t four(const X* p) {
  int64_t values;
  __builtin_memcpy(&values, p, sizeof values);
  return values;
}

// A lane has two of the four products of an output row. The lines of a tile are passed over with all
// lanes for up to two rows, and else with two vectors of them at a time: the sums of more would not fit
// into the registers.
template <int R>
void block(int32_t* sums, const Pass<X>& p) {
  constexpr int64_t kAtOnce = R <= 2 ? kParts : 2, kBytes = 64 / kParts;  // of a vector in W
  Ints c[2][R][kParts];
  QUIRE_UNROLL for (auto& tile : c) {
    QUIRE_UNROLL for (auto& row : tile) {
      QUIRE_UNROLL for (Ints& v : row) v = none();
    }
  }
  const uint8_t* lines = p.weight;
  for (int64_t i = 0; i < p.k; i += 64) {
    for (auto& tile : c) {
      for (int64_t part = 0; part < kParts; part += kAtOnce) {
        Ints now[R][kAtOnce];
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          QUIRE_UNROLL for (int64_t v = 0; v < kAtOnce; ++v) now[r][v] = tile[r][part + v];
        }
        const uint8_t* from = lines + part * kBytes;
        for (const X* x = p.x + i; x < p.x + i + 64; x += 4, from += 64) {
          fetch(from, p.ahead);
          QUIRE_UNROLL for (int64_t v = 0; v < kAtOnce; v += 2) {
            const Ints low = widened(from + v * kBytes), high = widened(from + (v + 1) * kBytes);
            QUIRE_UNROLL for (int r = 0; r < R; ++r) {
              const Ints values = fours(four(x + r * p.stride));
              now[r][v] = add_products(now[r][v], low, values);
              now[r][v + 1] = add_products(now[r][v + 1], high, values);
            }
          }
        }
        QUIRE_UNROLL for (int r = 0; r < R; ++r) {
          QUIRE_UNROLL for (int64_t v = 0; v < kAtOnce; ++v) tile[r][part + v] = now[r][v];
        }
      }
      lines += kTileBytes;
    }
  }
  for (int tile = 0; tile < 2; ++tile) {
    for (int r = 0; r < R; ++r) {
      int32_t halves[kBlockRows];
      __builtin_memcpy(halves, c[tile][r], sizeof halves);
      int32_t* const out = sums + r * kBlockRows + tile * 16;
      for (int n = 0; n < 16; ++n) out[n] = halves[2 * n] + halves[2 * n + 1];
    }
  }
}

inline void made_ready(X* row, int64_t k) {
  const auto* q = reinterpret_cast<const int8_t*>(row) + k;
  for (int64_t i = 0; i < k; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i), _mm256_cvtepi8_epi16(bytes));
  }
}

#else

using X = int8_t;
constexpr int kMostRows = 1;
inline void made_ready(X*, int64_t) {}

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

int64_t padded_k(const GemmArgs& a) { return round_up(a.k, kStepBytes); }
// Not a power of two: the rows of a pass share no cache set.
int64_t copied_stride(const GemmArgs& a) { return padded_k(a) + kStepBytes; }
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
  return round_up(a.rows * 4, 64) + a.rows * copied_stride(a) * static_cast<int64_t>(sizeof(X));
}

int64_t prepare_tasks(const GemmArgs& a) { return ceil_div(a.rows, kPrepareRows); }

void prepare(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows), k = padded_k(a);
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    X* row = rows_of_x(a) + r * copied_stride(a);
    auto* q = reinterpret_cast<int8_t*>(row) + (static_cast<int64_t>(sizeof(X)) - 1) * k;
    x_scales(a)[r] = quantize_row(a, r, q, kStepBytes);
    made_ready(row, k);
  }
}

}  // namespace

const Gemm kGemmS8 = {scratch_bytes, prepare_tasks, prepare, row_tasks<S8>, row_task<S8>};

}  // namespace quire::QUIRE_ISA
