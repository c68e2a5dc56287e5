#include "pack_u4.h"

#include <bit>
#include <algorithm>
#include <cmath>

#include "scalar.h"

namespace quire {

namespace {

int64_t groups_of(int64_t k, int64_t group) { return (k + group - 1) / group; }
int64_t group_bytes(int64_t group) { return kU4HeadBytes + group * kBlockRows / 2; }

// The power of two in whose units the largest of the values has f16's largest exponent: nothing that
// came from f16 is pushed out at the lower end. What would round up to infinity counts as larger.
float unit_of(const float* scale, const float* second, int64_t groups, bool zero_points) {
  float top = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    for (const float v : {std::fabs(scale[g]), zero_points ? 0.0f : std::fabs(second[g])}) {
      if (std::isfinite(v) && v > top) top = v;
    }
  }
  return top > 0.0f ? std::ldexp(1.0f, std::max(std::ilogb(top * 1.00025f) - 15, -120)) : 1.0f;
}

}  // namespace

int64_t u4_block_bytes(int64_t k, int64_t group) { return groups_of(k, group) * group_bytes(group); }

U4Rows::U4Rows(int64_t columns, int64_t group_size, bool has_zero_points)
    : k(columns), group(group_size), groups(groups_of(columns, group_size)),
      zero_points(has_zero_points),
      q(static_cast<size_t>(kBlockRows * groups * group)),
      scale(static_cast<size_t>(kBlockRows * groups)),
      second(static_cast<size_t>(kBlockRows * groups)) {}

void pack_u4(const U4Rows& rows, uint8_t* block, float* units) {
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const float* scale = rows.scale.data() + r * rows.groups;
    const float* second = rows.second.data() + r * rows.groups;
    units[r] = unit_of(scale, second, rows.groups, rows.zero_points);
    const float inverse = 1.0f / units[r];
    for (int64_t g = 0; g < rows.groups; ++g) {
      uint16_t* head = reinterpret_cast<uint16_t*>(block + g * group_bytes(rows.group));
      head[r] = to_f16(scale[g] * inverse);
      head[kBlockRows + r] = to_f16(rows.zero_points ? -second[g] : second[g] * inverse);
    }
  }
  for (int64_t g = 0; g < rows.groups; ++g) {
    uint8_t* lines = block + g * group_bytes(rows.group) + kU4HeadBytes;
    for (int64_t r = 0; r < kBlockRows / 2; ++r) {
      const uint8_t* low = rows.q.data() + (r * rows.groups + g) * rows.group;
      const uint8_t* high = low + kBlockRows / 2 * rows.groups * rows.group;
      for (int64_t i = 0; i < rows.group; ++i) {
        lines[i / 4 * 64 + r * 4 + i % 4] = static_cast<uint8_t>(low[i] | high[i] << 4);
      }
    }
  }
}

void read_u4(const uint8_t* block, int64_t r, int64_t k, int64_t group, bool zero_points, float unit,
             float* out) {
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t* head = block + i / group * group_bytes(group);
    const uint8_t* line = head + kU4HeadBytes + i % group / 4 * 64;
    const uint8_t both = line[r % 16 * 4 + i % 4];
    const float q = static_cast<float>(r < 16 ? both & 15 : both >> 4);
    const f16* pair = reinterpret_cast<const f16*>(head) + r;
    const float scale = to_float(pair[0]), second = to_float(pair[kBlockRows]);
    out[i] = (zero_points ? (q + second) * scale : q * scale + second) * unit;
  }
}

}  // namespace quire
