// The codes of grouped weights (gemm.h draws their lines), as bytes: compile-time arithmetic on the
// compiler's own vectors, the same for every ISA.
#pragma once

#include "gemm_parts.h"

namespace quire::QUIRE_ISA {
namespace {

// A line, or the part of it that belongs to kLanes output rows.
typedef uint16_t Words __attribute__((vector_size(4 * kLanes)));

inline Words words_at(const uint8_t* p) {
  Words v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Four columns of kLanes rows of either tile, a byte each.
struct Pair {
  Words low, high;
};

// The bits `from` … of each byte, as many as `mask` (of one byte) has, moved to bit `to` and on.
template <int kFrom, int kTo, int kMask>
inline Words field(Words v) {
  constexpr uint16_t mask = static_cast<uint16_t>((kMask << kTo) * 0x0101);
  if constexpr (kFrom > kTo) {
    return (v >> (kFrom - kTo)) & mask;
  } else if constexpr (kFrom < kTo) {
    return (v << (kTo - kFrom)) & mask;
  } else {
    return v & mask;
  }
}

// Codes of kBits bits, 2 to 7: a line of single bits if kBits is odd, two of pairs of bits, four of
// halves of bytes.
template <int kBits>
struct Codes {
  static constexpr int kLines = kBits;  // of a step of 16 columns
  static constexpr int kLargest = (1 << kBits) - 1;
  static constexpr int kOnes = kBits % 2, kTwos = kBits / 2 % 2, kFours = kBits / 4;

  explicit Codes(const GemmArgs&) {}

  // Columns 4j … 4j + 3 of the step at `lines`.
  template <int j>
  Pair pair(const uint8_t* lines) const {
    Pair p{};
    if constexpr (kFours) {
      const Words fours = words_at(lines + (kOnes + 2 * kTwos + j) * 64);
      p.low = field<0, 0, 15>(fours);
      p.high = field<4, 0, 15>(fours);
    }
    if constexpr (kTwos) {
      const Words twos = words_at(lines + (kOnes + j / 2) * 64);
      p.low |= field<j % 2 * 4, 4 * kFours, 3>(twos);
      p.high |= field<j % 2 * 4 + 2, 4 * kFours, 3>(twos);
    }
    if constexpr (kOnes) {
      const Words ones = words_at(lines);
      p.low |= field<2 * j, kBits - 1, 1>(ones);
      p.high |= field<2 * j + 1, kBits - 1, 1>(ones);
    }
    return p;
  }
};

template <>
struct Codes<8> {
  static constexpr int kLines = 8, kLargest = 255;

  explicit Codes(const GemmArgs&) {}

  template <int j>
  Pair pair(const uint8_t* lines) const {
    return {words_at(lines + 2 * j * 64), words_at(lines + (2 * j + 1) * 64)};
  }
};

// Codes of 4 bits that stand for the bytes of a codebook.
struct BookCodes {
  static constexpr int kLines = 4, kLargest = 255;

#if defined(__AVX512BW__)
  __m512i book;
  explicit BookCodes(const GemmArgs& a)
      : book(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a.codebook)))) {}
  Words looked_up(Words v) const {
    return reinterpret_cast<Words>(_mm512_shuffle_epi8(book, reinterpret_cast<__m512i>(v)));
  }
#elif defined(__AVX2__)
  __m256i book;
  explicit BookCodes(const GemmArgs& a)
      : book(_mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(a.codebook)))) {}
  Words looked_up(Words v) const {
    return reinterpret_cast<Words>(_mm256_shuffle_epi8(book, reinterpret_cast<__m256i>(v)));
  }
#elif defined(QUIRE_NEON)
  uint8x16_t book;
  explicit BookCodes(const GemmArgs& a) : book(vld1q_u8(a.codebook)) {}
  Words looked_up(Words v) const {
    return reinterpret_cast<Words>(vqtbl1q_u8(book, reinterpret_cast<uint8x16_t>(v)));
  }
#else
  const uint8_t* book;
  explicit BookCodes(const GemmArgs& a) : book(a.codebook) {}
  Words looked_up(Words v) const {
    uint8_t bytes[sizeof v];
    __builtin_memcpy(bytes, &v, sizeof v);
    for (uint8_t& byte : bytes) byte = book[byte];
    return words_at(bytes);
  }
#endif

  template <int j>
  Pair pair(const uint8_t* lines) const {
    const Words both = words_at(lines + j * 64);
    return {looked_up(field<0, 0, 15>(both)), looked_up(field<4, 0, 15>(both))};
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
