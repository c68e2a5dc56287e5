// Packs the rows of a weight into blocks, rounding them if the kind needs it.
#include <string.h>

#include <bit>
#include <memory>
#include <stdexcept>

#include "interleave.h"
#include "pack_f8.h"
#include "packed_weight.h"
#include "scalar.h"

namespace quire {

namespace {

constexpr DType dtype_of(float) { return kFloat32; }
constexpr DType dtype_of(bf16) { return kBFloat16; }
constexpr DType dtype_of(f16) { return kFloat16; }

// Rounds a row to int8. Returns its scale, and the sum of the int8 values in `sum`.
template <class T>
float quantize(const T* row, int64_t k, int8_t* __restrict q, int32_t& sum) {
  int32_t largest = 0;  // as bits, which have the order of the numbers, with NaN above all
  for (int64_t i = 0; i < k; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(to_float(row[i])) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const float top = std::bit_cast<float>(largest);
  const float inverse = top > 1e-36f ? 127.0f / top : 0.0f;
  int32_t total = 0;
  for (int64_t i = 0; i < k; ++i) {
    // Adding 1.5 * 2^23 leaves the number, rounded to nearest even, in the lowest bits.
    const int32_t bits = std::bit_cast<int32_t>(to_float(row[i]) * inverse + 0x1.8p23f);
    const int32_t rounded = static_cast<int32_t>(static_cast<uint32_t>(bits) << 24) >> 24;
    q[i] = static_cast<int8_t>(rounded);
    total += rounded;
  }
  sum = total;
  return top / 127.0f;
}

// The grouped kinds that floats can be rounded to.
bool is_rounded(WeightKind kind) { return kind == kWeightU4 || kind == kWeightU6; }

int64_t rows_of(const std::vector<WeightPart>& parts) {
  int64_t rows = 0;
  for (const WeightPart& part : parts) rows += part.rows;
  return rows;
}

template <class T>
const T* row_at(const std::vector<WeightPart>& parts, int64_t row) {
  const WeightPart* part = parts.data();
  for (; row >= part->rows; ++part) row -= part->rows;
  return static_cast<const T*>(part->data) + row * part->stride;
}

}  // namespace

void PackedWeight::set_bias(const float* bias) {
  for (size_t p = 0; p < bias_.size(); ++p) {
    const int64_t row = source_row(static_cast<int64_t>(p));
    if (row >= 0) bias_[p] = bias[row];
  }
}

template <class Body>
void PackedWeight::each_block(Pool& pool, const Body& body) {
  const auto task = [](void* context, int64_t block) { (*static_cast<const Body*>(context))(block); };
  pool.run(all_blocks(), task, const_cast<Body*>(&body));
}

PackedWeight::PackedWeight(Pool& pool, WeightKind kind, Epilogue epilogue,
                           const std::vector<WeightPart>& parts, DType dtype, int64_t k,
                           const float* bias, CodeRounding codes, int64_t experts)
    : PackedWeight({.kind = kind, .epilogue = epilogue, .n = rows_of(parts), .k = k,
                    .group = codes.group, .second = is_rounded(kind) ? kOffsets : kNoSecond,
                    .bias = bias != nullptr, .experts = experts}) {
  if (code_bits(kind) != 0 && !is_rounded(kind)) {
    throw std::invalid_argument("weights are not rounded to this kind while they are packed");
  }
  set_bias(bias);
  switch (dtype) {
    case kFloat32: pack<float>(pool, parts, codes); break;
    case kBFloat16: pack<bf16>(pool, parts, codes); break;
    default: pack<f16>(pool, parts, codes); break;
  }
}

PackedWeight::PackedWeight(Pool& pool, const PackedShape& shape, const QuantizedSource& source,
                           const float* bias)
    : PackedWeight(shape) {
  set_bias(bias);
  if (source.codebook != nullptr) memcpy(codebook_.data(), source.codebook, codebook_.size());
  if (source.permutation != nullptr) {
    memcpy(permutation_.data(), source.permutation, permutation_.size() * sizeof(int32_t));
  }
  each_block(pool, [&](int64_t block) {
    if (is_int8(shape_.kind)) {
      keep_s8_block(source, block);
    } else if (is_f8(shape_.kind)) {
      keep_f8_block(source, block);
    } else {
      keep_grouped_block(source, block);
    }
  });
}

void PackedWeight::keep_s8_block(const QuantizedSource& source, int64_t block) {
  const int64_t row_bytes = block_bytes() / kBlockRows;
  const auto stage = std::make_unique<uint8_t[]>(static_cast<size_t>(kBlockRows * row_bytes));
  const uint8_t* from[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t packed = block * kBlockRows + r, n = source_row(packed);
    uint8_t* const to = stage.get() + r * row_bytes;
    from[r] = to;
    if (n < 0) continue;
    const int8_t* q = static_cast<const int8_t*>(source.codes) + n * shape_.k;
    memcpy(to, q, static_cast<size_t>(shape_.k));
    scale_[static_cast<size_t>(packed)] = source.scale[n];
    int32_t sum = 0;
    for (int64_t i = 0; i < shape_.k; ++i) sum += q[i];
    row_sum_[static_cast<size_t>(packed)] = sum;
  }
  interleave_s8(memory_.data() + block * block_bytes(), from, row_bytes);
}

void PackedWeight::keep_f8_block(const QuantizedSource& source, int64_t block) {
  const int64_t groups = f8_groups(shape_.k, shape_.group);
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    pack_f8(static_cast<const uint8_t*>(source.codes) + n * shape_.k, shape_.k, r,
            memory_.data() + block * block_bytes());
    float* const scale = scale_.data() + block * groups * kBlockRows + r;
    for (int64_t g = 0; g < groups; ++g) scale[g * kBlockRows] = source.scale[n * groups + g];
  }
}

void PackedWeight::keep_grouped_block(const QuantizedSource& source, int64_t block) {
  GroupedRows rows(grouping());
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    const size_t heads = static_cast<size_t>(rows.groups) * sizeof(float);
    const uint8_t* q = static_cast<const uint8_t*>(source.codes) + n * shape_.k;
    memcpy(rows.q_of(r), q, static_cast<size_t>(shape_.k));
    memcpy(rows.scale_of(r), source.scale + n * rows.groups, heads);
    if (source.second != nullptr) {
      memcpy(rows.second_of(r), source.second + n * rows.groups, heads);
    }
  }
  pack_grouped(grouping(), rows, memory_.data() + block * block_bytes(),
               scale_.data() + block * kBlockRows);
}

// Interleaves int8 rows as the kind requires.
void PackedWeight::interleave_s8(uint8_t* block, const uint8_t* const* rows, int64_t row_bytes) {
  if (shape_.kind == kWeightS8) return interleave(block, rows, row_bytes / kStepBytes);
  for (int64_t k = 0; k < row_bytes; k += 32) {
    interleave_16(block + k * kBlockRows, rows, k, 16, kBlockRows / 2);
  }
}

template <class T>
void PackedWeight::pack(Pool& pool, const std::vector<WeightPart>& parts, CodeRounding codes) {
  each_block(pool, [&](int64_t block) {
    if (is_rounded(shape_.kind)) {
      round_codes_block<T>(parts, block, codes);
    } else {
      pack_block<T>(parts, block);
    }
  });
}

template <class T>
void PackedWeight::round_codes_block(const std::vector<WeightPart>& parts, int64_t block,
                                     CodeRounding codes) {
  GroupedRows rows(grouping());
  const int bits = code_bits(shape_.kind);
  std::vector<float> w(static_cast<size_t>(shape_.k));
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t n = source_row(block * kBlockRows + r);
    if (n < 0) continue;
    const T* row = row_at<T>(parts, n);
    for (int64_t i = 0; i < shape_.k; ++i) w[static_cast<size_t>(i)] = to_float(row[i]);
    for (int64_t g = 0; g < rows.groups; ++g) {
      const int64_t first = g * shape_.group;
      const int64_t count = shape_.k - first < shape_.group ? shape_.k - first : shape_.group;
      codes.quantize(bits, w.data() + first, count, rows.q_of(r) + first, rows.scale_of(r) + g,
                     rows.second_of(r) + g);
    }
  }
  pack_grouped(grouping(), rows, memory_.data() + block * block_bytes(),
               scale_.data() + block * kBlockRows);
}

template <class T>
void PackedWeight::pack_block(const std::vector<WeightPart>& parts, int64_t block) {
  const int64_t row_bytes = block_bytes() / kBlockRows;
  const bool int8 = is_int8(shape_.kind);
  const DType stored = shape_.kind == kWeightF32   ? kFloat32
                       : shape_.kind == kWeightF16 ? kFloat16
                                                   : kBFloat16;
  const bool as_it_is = !int8 && dtype_of(T{}) == stored &&
                        shape_.k * static_cast<int64_t>(sizeof(T)) == row_bytes;
  const int64_t staged = row_bytes + kStepBytes;  // not a power of two: rows share no cache set
  const auto stage = std::make_unique<uint8_t[]>(
      static_cast<size_t>(as_it_is ? row_bytes : kBlockRows * staged));
  const uint8_t* from[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t packed = block * kBlockRows + r, n = source_row(packed);
    uint8_t* const to = stage.get() + (as_it_is ? 0 : r * staged);
    from[r] = to;
    if (n < 0) continue;  // zero, as the stage is
    const T* row = row_at<T>(parts, n);
    if (int8) {
      const size_t p = static_cast<size_t>(packed);
      scale_[p] = quantize(row, shape_.k, reinterpret_cast<int8_t*>(to), row_sum_[p]);
    } else if (as_it_is) {
      from[r] = reinterpret_cast<const uint8_t*>(row);
    } else if (shape_.kind == kWeightF32) {
      float* const values = reinterpret_cast<float*>(to);
      for (int64_t k = 0; k < shape_.k; ++k) values[k] = to_float(row[k]);
    } else {
      uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
      for (int64_t k = 0; k < shape_.k; ++k) {
        bits[k] = shape_.kind == kWeightF16 ? to_f16(row[k]) : to_bf16(row[k]);
      }
    }
  }
  uint8_t* const out = memory_.data() + block * block_bytes();
  if (shape_.kind == kWeightF32) {
    interleave_f32(out, from, shape_.k);
  } else if (shape_.kind == kWeightF16) {
    for (int64_t k = 0; k < shape_.k; k += 32) {
      const int64_t lines = shape_.k - k < 32 ? shape_.k - k : 32;
      interleave_16(out + k * kBlockRows * 2, from, k * 2, lines, kBlockRows);
    }
  } else if (int8) {
    interleave_s8(out, from, row_bytes);
  } else {
    interleave(out, from, row_bytes / kStepBytes);
  }
}

}  // namespace quire
