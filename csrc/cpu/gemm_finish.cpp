// The epilogue of an ISA's GEMM kernels, compiled once for all of them: with three dtypes and every
// activation, it would be the largest part of each.
#include <type_traits>

#include "gemm_finish_bf16.h"

namespace quire::QUIRE_ISA {

namespace {

constexpr int64_t kHalf = kBlockRows / 2;

// A product, rounded to T, and stored.
template <class T>
void put(T* y, Vec v, int64_t n) {
  if (n >= kLanes) {
    store(y, v);
  } else {
    store(y, v, n);
  }
}
template <class T>
void put_rounded(T* y, Vec sum, int64_t n) {
  put(y, sum, n);
}
#if defined(__AVX512BF16__)
template <>
void put_rounded(bf16* y, Vec sum, int64_t n) {
  put_lanes(y, fast_bf16(sum), n);
}
#endif

// What is added up, as floats: of(i, j) has the columns j … of row i.
struct Floats {
  const float* sums;
  Vec of(int64_t i, int64_t j) const { return load(sums + i * kBlockRows + j); }
  void skip(int64_t rows) { sums += rows * kBlockRows; }
};
struct ScaledInts {
  const int32_t* sums;
  const float *scale, *x_scale;
  Vec of(int64_t i, int64_t j) const {
    const Vec sum = load(sums + i * kBlockRows + j);
    return mul(mul(sum, load(scale + j)), broadcast(x_scale[i]));
  }
  void skip(int64_t rows) {
    sums += rows * kBlockRows;
    x_scale += rows;
  }
};

struct ScaledFloats {
  const float *sums, *scale, *x_scale;
  Vec of(int64_t i, int64_t j) const {
    return mul(load(sums + i * kBlockRows + j), mul(load(scale + j), broadcast(x_scale[i])));
  }
  void skip(int64_t rows) {
    sums += rows * kBlockRows;
    x_scale += rows;
  }
};

// Without an activation.
template <class T, class Sums>
void put_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const Sums& sums) {
  T* y = static_cast<T*>(a.y) + r * a.y_stride + n0;
  const int64_t cols = smaller(kBlockRows, a.columns - n0);
  const auto value = [&](int64_t i, int64_t j) {
    const Vec v = sums.of(i, j);
    return a.bias == nullptr ? v : add(v, load(a.bias + n0 + j));
  };
#if defined(__AVX512BF16__)
  // A line that is written whole need not be read before.
  if (sizeof(T) == 2 && a.y_dtype == kBFloat16 && a.past_caches && cols == kBlockRows) {
    for (int64_t i = 0; i < rows; ++i, y += a.y_stride) {
      const __m512bh line = _mm512_cvtne2ps_pbh(value(i, kLanes), value(i, 0));
      _mm512_stream_si512(reinterpret_cast<__m512i*>(y), reinterpret_cast<__m512i>(line));
    }
    return;
  }
#endif
  for (int64_t i = 0; i < rows; ++i, y += a.y_stride) {
    for (int64_t j = 0; j < cols; j += kLanes) put_rounded(y + j, value(i, j), cols - j);
  }
}

template <class T>
void round_sums(const float* bias, int64_t rows, float* sums) {
  for (; rows > 0; --rows, sums += kBlockRows) {
    for (int64_t j = 0; j < kBlockRows; j += kLanes) {
      const Vec v = load(sums + j);
      store(sums + j, round<T>(bias == nullptr ? v : add(v, load(bias + j))));
    }
  }
}

template <class F, bool is_gated>
void activate(int64_t rows, float* sums) {
  for (; rows > 0; --rows, sums += kBlockRows) {
    if constexpr (is_gated) {
      for (int64_t j = 0; j < kHalf; j += kLanes) {
        store(sums + j, F::of(load(sums + j), load(sums + kHalf + j)));
      }
    } else {
      for (int64_t j = 0; j < kBlockRows; j += kLanes) store(sums + j, F::of(load(sums + j)));
    }
  }
}

// T is the type to which the results are rounded: bf16, or float for all others.
template <class T>
void activate(int epilogue, int64_t rows, float* sums) {
  switch (epilogue) {
#define QUIRE_ACTIVATE(code, name, F, gated) \
  case code: return activate<F<T>, gated>(rows, sums);
    QUIRE_ACTIVATIONS(QUIRE_ACTIVATE)
#undef QUIRE_ACTIVATE
    default: return;
  }
}

// Activations work on floats, so that they are not compiled for every kind of sums.
template <class T>
void finish_as(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums) {
  if (a.epilogue == kNoEpilogue) return put_sums<T>(a, r, rows, n0, Floats{sums});
  round_sums<T>(a.bias == nullptr ? nullptr : a.bias + n0, rows, sums);
  using Rounded = std::conditional_t<std::is_same_v<T, bf16>, bf16, float>;
  activate<Rounded>(a.epilogue, rows, sums);
  const int64_t width = kGatedEpilogues[a.epilogue] ? kHalf : kBlockRows;
  const int64_t column = n0 / kBlockRows * width, cols = smaller(width, a.columns - column);
  T* y = static_cast<T*>(a.y) + r * a.y_stride + column;
  for (; rows > 0; --rows, y += a.y_stride, sums += kBlockRows) {
    for (int64_t j = 0; j < cols; j += kLanes) put(y + j, load(sums + j), cols - j);
  }
}

}  // namespace

namespace {

// Whether y is bf16, and nothing has to be written back to the sums.
bool is_direct(const GemmArgs& a) {
#if defined(__AVX512BF16__)
  return a.y_dtype == kBFloat16;
#else
  return a.y_dtype == kBFloat16 && a.epilogue == kNoEpilogue;
#endif
}

template <class Sums>
void finish_directly(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const Sums& sums) {
#if defined(__AVX512BF16__)
  if (a.epilogue != kNoEpilogue) return put_activated(a, r, rows, n0, sums);
#endif
  put_sums<bf16>(a, r, rows, n0, sums);
}

// Sums that are scaled first: into `floats`, if they are written back.
template <class Sums>
void finish_scaled(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const Sums& sums,
                   float* floats) {
  if (is_direct(a)) return finish_directly(a, r, rows, n0, sums);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < kBlockRows; j += kLanes) store(floats + i * kBlockRows + j, sums.of(i, j));
  }
  finish(a, r, rows, n0, floats);
}

}  // namespace

void finish(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums) {
  if (is_direct(a)) return finish_directly(a, r, rows, n0, Floats{sums});
  switch (a.y_dtype) {
    case kFloat32: return finish_as<float>(a, r, rows, n0, sums);
    case kFloat16: return finish_as<f16>(a, r, rows, n0, sums);
    default: return finish_as<bf16>(a, r, rows, n0, sums);
  }
}

void finish_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums) {
  if (a.scale != nullptr) {
    for (int64_t i = 0; i < rows * kBlockRows; i += kLanes) {
      store(sums + i, mul(load(sums + i), load(a.scale + n0 + i % kBlockRows)));
    }
  }
  finish(a, r, rows, n0, sums);
}

void finish_sums(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, const int32_t* sums) {
  alignas(64) float floats[32 * kBlockRows];
  finish_scaled(a, r, rows, n0, ScaledInts{sums, a.scale + n0, x_scales(a) + r}, floats);
}

void finish_scaled(const GemmArgs& a, int64_t r, int64_t rows, int64_t n0, float* sums,
                   const float* x_scale) {
  finish_scaled(a, r, rows, n0, ScaledFloats{sums, a.scale + n0, x_scale}, sums);
}

}  // namespace quire::QUIRE_ISA
