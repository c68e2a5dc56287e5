#include "pack_f8.h"

#include <bit>

#include "float8.h"

namespace quire {

namespace {

// Offset of columns i and i + 1 of row r; i is even.
int64_t place(int64_t i, int64_t r) {
  return i / 4 * 128 + r / 16 * 64 + r % 16 / 4 * 16 + i % 4 / 2 * 8 + r % 4 * 2;
}

template <class F8>
float value(uint8_t code) {
  const uint32_t bits = float8_bf16<F8>(code & 0x7f) | static_cast<uint32_t>(code & 0x80) << 8;
  return std::bit_cast<float>(bits << 16);
}

}  // namespace

void pack_f8(const uint8_t* codes, int64_t k, int64_t r, uint8_t* block) {
  for (int64_t i = 0; i < k; i += 2) {
    uint8_t* const to = block + place(i, r);
    to[0] = codes[i];
    if (i + 1 < k) to[1] = codes[i + 1];
  }
}

void read_f8(WeightKind kind, const uint8_t* block, int64_t r, int64_t k, int64_t group,
             const float* scale, float* out) {
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t code = block[place(i / 2 * 2, r) + i % 2];
    const float v = kind == kWeightF8E4M3 ? value<f8_e4m3>(code) : value<f8_e5m2>(code);
    out[i] = v * scale[group == 0 ? 0 : i / group * kBlockRows];
  }
}

}  // namespace quire
