#include "pack_grouped.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "scalar.h"

namespace quire {

namespace {

constexpr int64_t kStep = 16;  // columns

// Where `count` consecutive bits of a code, from its bit `of_code` on, are stored: in line `line` of the
// step, in the row's byte, from bit `bit` on.
struct Piece {
  int64_t line;
  int bit, of_code, count;
};

// The pieces of the code in a column of a step, for a row of the first or the second tile.
int pieces(int bits, int64_t column, int tile, Piece (&out)[3]) {
  const int pair = static_cast<int>(column / 4);
  if (bits == 8) {
    out[0] = {2 * pair + tile, 0, 0, 8};
    return 1;
  }
  const int ones = bits % 2, twos = bits / 2 % 2, fours = bits / 4;
  int count = 0;
  if (fours != 0) out[count++] = {ones + 2 * twos + pair, 4 * tile, 0, 4};
  if (twos != 0) out[count++] = {ones + pair / 2, pair % 2 * 4 + 2 * tile, 4 * fours, 2};
  if (ones != 0) out[count++] = {0, 2 * pair + tile, bits - 1, 1};
  return count;
}

// The codes of columns 4 · pair … 4 · pair + 3 of a step, for row r: a byte each.
uint32_t four_codes(int bits, const uint8_t* lines, int64_t r, int pair) {
  const int tile = static_cast<int>(r / 16), ones = bits % 2, twos = bits / 2 % 2, fours = bits / 4;
  const auto line = [&](int index) {
    uint32_t bytes;
    memcpy(&bytes, lines + index * 64 + r % 16 * 4, sizeof bytes);
    return bytes;
  };
  if (bits == 8) return line(2 * pair + tile);
  uint32_t codes = 0;
  if (fours != 0) codes |= line(ones + 2 * twos + pair) >> 4 * tile & 0x0f0f0f0f;
  if (twos != 0) codes |= (line(ones + pair / 2) >> (pair % 2 * 4 + 2 * tile) & 0x03030303) << 4 * fours;
  if (ones != 0) codes |= (line(0) >> (2 * pair + tile) & 0x01010101) << (bits - 1);
  return codes;
}

// Packs 16 columns of 32 rows, which are `stride` bytes apart, into the lines of a step.
void pack_step(int bits, const uint8_t* q, int64_t stride, uint8_t* lines) {
  for (int64_t column = 0; column < kStep; ++column) {
    for (int tile = 0; tile < 2; ++tile) {
      Piece found[3];
      const int count = pieces(bits, column, tile, found);
      for (int p = 0; p < count; ++p) {
        const auto [line, bit, of_code, width] = found[p];
        const int mask = (1 << width) - 1;
        uint8_t* to = lines + line * 64 + column % 4;
        const uint8_t* from = q + tile * 16 * stride + column;
        for (int64_t r = 0; r < 16; ++r, to += 4, from += stride) {
          *to = static_cast<uint8_t>(*to | (*from >> of_code & mask) << bit);
        }
      }
    }
  }
}

// The power of two that, as a unit, gives the largest value f16's largest exponent. So values from f16
// do not underflow. A value that would round up to infinity gets the next larger unit.
float unit_of(const float* scale, const float* second, int64_t groups, bool offsets) {
  float top = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    for (const float v : {std::fabs(scale[g]), offsets ? std::fabs(second[g]) : 0.0f}) {
      if (std::isfinite(v) && v > top) top = v;
    }
  }
  return top > 0.0f ? std::ldexp(1.0f, std::max(std::ilogb(top * 1.00025f) - 15, -120)) : 1.0f;
}

}  // namespace

int code_bits(WeightKind kind) {
  switch (kind) {
    case kWeightU2: return 2;
    case kWeightU3: return 3;
    case kWeightU4:
    case kWeightU4Book: return 4;
    case kWeightU5: return 5;
    case kWeightU6: return 6;
    case kWeightU8: return 8;
    default: return 0;
  }
}

int64_t Grouping::group_bytes() const {
  return head_bytes() + group / kStep * code_bits(kind) * 64;
}

GroupedRows::GroupedRows(const Grouping& grouping)
    : k(grouping.k), group(grouping.group), groups(grouping.groups()),
      q(static_cast<size_t>(kBlockRows * groups * group)),
      scale(static_cast<size_t>(kBlockRows * groups)),
      second(static_cast<size_t>(kBlockRows * groups)) {}

void pack_grouped(const Grouping& grouping, const GroupedRows& rows, uint8_t* block, float* units) {
  const int64_t group_bytes = grouping.group_bytes();
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const float* scale = rows.scale.data() + r * rows.groups;
    const float* second = rows.second.data() + r * rows.groups;
    units[r] = unit_of(scale, second, rows.groups, grouping.second == kOffsets);
    const float inverse = 1.0f / units[r];
    for (int64_t g = 0; g < rows.groups; ++g) {
      uint16_t* head = reinterpret_cast<uint16_t*>(block + g * group_bytes);
      head[r] = to_f16(scale[g] * inverse);
      if (grouping.second == kZeroPoints) head[kBlockRows + r] = to_f16(-second[g]);
      if (grouping.second == kOffsets) head[kBlockRows + r] = to_f16(second[g] * inverse);
    }
  }
  const int bits = code_bits(grouping.kind);
  for (int64_t g = 0; g < rows.groups; ++g) {
    uint8_t* lines = block + g * group_bytes + grouping.head_bytes();
    const uint8_t* q = rows.q.data() + g * rows.group;
    for (int64_t step = 0; step < rows.group / kStep; ++step, lines += bits * 64, q += kStep) {
      pack_step(bits, q, rows.groups * rows.group, lines);
    }
  }
}

void read_grouped(const Grouping& grouping, const uint8_t* block, int64_t r, float unit,
                  float* out) {
  const int bits = code_bits(grouping.kind);
  for (int64_t first = 0; first < grouping.k; first += grouping.group) {
    const uint8_t* head = block + first / grouping.group * grouping.group_bytes();
    const f16* pair = reinterpret_cast<const f16*>(head) + r;
    const float scale = to_float(pair[0]);
    const float second = grouping.second == kNoSecond ? 0.0f : to_float(pair[kBlockRows]);
    const int64_t last = std::min(grouping.k, first + grouping.group);
    const uint8_t* lines = head + grouping.head_bytes();
    for (int64_t i = first; i < last; i += 4) {
      const int64_t step = (i - first) / kStep;
      const uint32_t codes = four_codes(bits, lines + step * bits * 64, r, static_cast<int>(i % kStep / 4));
      uint8_t four[4];
      memcpy(four, &codes, sizeof four);
      for (int64_t c = i; c < std::min(last, i + 4); ++c) {
        int code = four[c - i];
        if (grouping.codebook != nullptr) code = grouping.codebook[code];
        const float q = static_cast<float>(code - grouping.zero);
        const float value = grouping.second == kZeroPoints ? (q + second) * scale : q * scale + second;
        out[c] = value * unit;
      }
    }
  }
}

}  // namespace quire
