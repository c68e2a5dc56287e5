// GEMM with the dot instructions of AVX-512 BF16 and of NEON: x is bfloat16. Weights are bfloat16; with
// AVX-512 also int8, which is converted to bfloat16 exactly (s8_a16).
//
// A lane is an output row. It adds the products of two columns at a time, in ascending order of k.
#if defined(__AVX512BF16__)
#include "bf16_dot.h"
#include "gemm_wide.h"
#else
#include "gemm_neon.h"
#endif

namespace quire::QUIRE_ISA {

namespace {

#if defined(__AVX512BF16__)
constexpr int kMostRows = kWideRows;
#else
constexpr int kMostRows = 4;  // GCC spills five
#endif
constexpr int64_t kInPlaceRows = 3 * kMostRows;  // max rows of bf16 that are read in place

bool in_place(const GemmArgs& a) {
  return a.x_dtype == kBFloat16 && a.rows <= kInPlaceRows && a.k % 32 == 0;
}
int64_t padded_k(const GemmArgs& a) { return round_up(a.k, 32); }
// Not a power of two, so that the rows of a pass share no cache set.
int64_t copied_stride(const GemmArgs& a) { return padded_k(a) + 32; }

#if defined(__AVX512BF16__)

// A line has two adjacent columns of x for 16 output rows.
struct BF16Line {
  static constexpr int64_t kLineBytes = 64;
  static __m512i line(const uint8_t* p) { return _mm512_loadu_si512(p); }
};
struct S8Line {
  static constexpr int64_t kLineBytes = 32;
  static __m512i line(const uint8_t* p) { return reinterpret_cast<__m512i>(s8_pairs(p)); }
};

#else

struct BF16Line {
  static constexpr int64_t kLineBytes = 64;
};

#endif

template <class Line>
struct Dot : Line {
  using X = bf16;
  using Sum = float;
  static constexpr int kMost = kMostRows;
  static constexpr int kStreamRows = 6;

  static Input<bf16> input(const GemmArgs& a) {
    const int64_t k = padded_k(a), bytes = k * Line::kLineBytes;
    if (in_place(a)) return {static_cast<const bf16*>(a.x), a.x_stride, k, bytes};
    return {static_cast<const bf16*>(a.scratch), copied_stride(a), k, bytes};
  }

#if defined(__AVX512BF16__)

  static void add(__m512& sum, __m512i w, __m512i x) { add_products(sum, w, x); }

  template <int R>
  static void add_narrow(__m512 (&c)[R][2], const Pass<bf16>& p) {
    const uint8_t* line = p.weight;
    const int64_t ahead = p.ahead;
    Thirds<R, bf16> x(p.x, p.stride);
    for (int64_t i = 0; i < p.k; i += 32) {
      QUIRE_UNROLL for (int tile = 0; tile < 2; ++tile) {
        for (int pair = 0; pair < 16; ++pair, line += Line::kLineBytes, x.skip(2)) {
          fetch(line, ahead);
          const __m512i w = Line::line(line);
          QUIRE_UNROLL for (int r = 0; r < R; ++r) add_products(c[r][tile], w, x.at(r));
        }
        if (tile == 0) x.skip(-32);
      }
    }
  }

  template <int R>
  QUIRE_PASS static void block(float* sums, const Pass<bf16>& p) {
    __m512 c[R][2];
    QUIRE_UNROLL for (auto& row : c) row[0] = row[1] = _mm512_setzero_ps();
    if constexpr (R > kNarrowRows) {
      add_wide<Dot>(c, p);
    } else {
      add_narrow(c, p);
    }
    QUIRE_UNROLL for (int r = 0; r < R; ++r) {
      _mm512_storeu_ps(sums + r * kBlockRows, c[r][0]);
      _mm512_storeu_ps(sums + r * kBlockRows + 16, c[r][1]);
    }
  }

#else

  template <int R>
  static void block(float* sums, const Pass<bf16>& p) {
    neon_block<BF16Kind, R>(sums, p);
  }

#endif
};

int64_t scratch_bytes(const GemmArgs& a) {
  return in_place(a) ? 0 : a.rows * copied_stride(a) * 2;
}
int64_t prepare_tasks(const GemmArgs& a) {
  return in_place(a) ? 0 : ceil_div(a.rows, kPrepareRows);
}

void prepare(const GemmArgs& a, int64_t task) {
  const int64_t last = smaller(a.rows, (task + 1) * kPrepareRows);
  for (int64_t r = task * kPrepareRows; r < last; ++r) {
    round_row(a, r, static_cast<uint8_t*>(a.scratch) + r * copied_stride(a) * 2, kStepBytes);
  }
}

template <class Line>
constexpr Gemm kGemm = {scratch_bytes, prepare_tasks, prepare, row_tasks<Dot<Line>>,
                        row_task<Dot<Line>>};

}  // namespace

const Gemm kGemmBF16 = kGemm<BF16Line>;
#if defined(__AVX512BF16__)
const Gemm kGemmS8A16 = kGemm<S8Line>;
#endif

}  // namespace quire::QUIRE_ISA
