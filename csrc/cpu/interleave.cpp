#include "interleave.h"

#include <string.h>

namespace quire {

namespace {

typedef uint32_t Lanes4 __attribute__((vector_size(16)));  // 4 lanes: baseline on every machine

// Transposes 4 × 4 lanes of 4 bytes: 16 bytes of row r, `at` bytes from its start, become lane r of
// 4 lines, `line_bytes` apart.
void transpose(uint8_t* to, int64_t line_bytes, const uint8_t* const* from, int64_t at) {
  Lanes4 r0, r1, r2, r3;
  memcpy(&r0, from[0] + at, 16);
  memcpy(&r1, from[1] + at, 16);
  memcpy(&r2, from[2] + at, 16);
  memcpy(&r3, from[3] + at, 16);
  const Lanes4 a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const Lanes4 b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Lanes4 c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Lanes4 d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  const Lanes4 lines[] = {__builtin_shufflevector(a, b, 0, 1, 4, 5),
                          __builtin_shufflevector(a, b, 2, 3, 6, 7),
                          __builtin_shufflevector(c, d, 0, 1, 4, 5),
                          __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int64_t line = 0; line < 4; ++line) memcpy(to + line * line_bytes, lines + line, 16);
}

}  // namespace

void interleave(uint8_t* block, const uint8_t* const* rows, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step, block += 2 * kTileBytes) {
    for (int64_t r = 0; r < kBlockRows; r += 4) {
      uint8_t* to = block + r / 16 * kTileBytes + r % 16 * 4;
      for (int64_t at = 0; at < kStepBytes; at += 16) {
        transpose(to + at / 4 * 64, 64, rows + r, step * kStepBytes + at);
      }
    }
  }
}

void interleave_f32(uint8_t* block, const uint8_t* const* rows, int64_t k) {
  constexpr int64_t kLine = kBlockRows * 4;
  const int64_t bytes = k * 4, whole = bytes / 16 * 16;
  for (int64_t begin = 0; begin < whole; begin += kStepBytes) {
    const int64_t end = begin + kStepBytes < whole ? begin + kStepBytes : whole;
    for (int64_t r = 0; r < kBlockRows; r += 4) {
      for (int64_t at = begin; at < end; at += 16) {
        transpose(block + at / 4 * kLine + r * 4, kLine, rows + r, at);
      }
    }
  }
  for (int64_t r = 0; r < kBlockRows; ++r) {
    for (int64_t at = whole; at < bytes; at += 4) {
      memcpy(block + at / 4 * kLine + r * 4, rows[r] + at, 4);
    }
  }
}

void interleave_16(uint8_t* out, const uint8_t* const* rows, int64_t at, int64_t lines,
                   int64_t width) {
  for (int64_t r = 0; r < kBlockRows; ++r) {
    uint8_t* const to = out + (r / width * lines * width + r % width) * 2;
    const uint8_t* const from = rows[r] + at;
    for (int64_t line = 0; line < lines; ++line) memcpy(to + line * width * 2, from + line * 2, 2);
  }
}

}  // namespace quire
