// A linear layer's weight in the order in which the GEMM kernels read it (gemm.h draws it).
#pragma once

#include <stdint.h>

#include <utility>
#include <vector>

#include "kernels.h"
#include "pack_grouped.h"
#include "packed_memory.h"
#include "pool.h"

namespace quire {

inline bool is_int8(WeightKind kind) { return kind == kWeightS8 || kind == kWeightS8A16; }

// Some rows of a weight that is about to be packed, `stride` elements apart.
struct WeightPart {
  const void* data;
  int64_t rows, stride;
};

// How weights of the kinds u4 and u6 are rounded.
struct CodeRounding {
  int64_t group;  // 32, 64 or 128
  decltype(Kernels::quantize_codes) quantize;
};

// Describes a packed weight without its numbers; the sizes of its memory follow from it. `group` is for
// the kinds u2 to u8 and for 8-bit floats, which may have groups. `second`, `zero` and `permuted` are
// only for the kinds u2 to u8.
struct PackedShape {
  WeightKind kind;
  Epilogue epilogue;
  int64_t n, k;
  int64_t group = 0;
  Second second = kNoSecond;
  int32_t zero = 0;
  bool permuted = false;
  bool bias = false;
  float input_scale = 0.0f;  // of int8 x; 0: each row of x has its own scale
  int64_t experts = 1;       // the n rows are theirs, one expert after the other, in separate blocks
};

// A weight that is already quantized, as contiguous arrays: codes with groups (pack_grouped.h), int8
// with one scale per row (kinds s8 and s8_a16), or 8-bit floats.
struct QuantizedSource {
  const void* codes;            // [n, k], bytes
  const float* scale;           // [n, ceil(k / group)], or [n]
  const float* second;          // [n, ceil(k / group)]; or null
  const uint8_t* codebook;      // [16]; or null
  const int32_t* permutation;   // [k]; or null
};

class PackedWeight {
 public:
  // All zeros, to be filled with numbers packed earlier. Throws like the next constructor.
  explicit PackedWeight(const PackedShape& shape);
  // Packs the rows of all parts [n, k], one part after the other, on the pool; bias is float32 [n]
  // or null. s8 and s8_a16 are rounded to nearest: W = q * scale, scale = max|W| / 127 of each row;
  // u4 and u6 as `codes` says. Throws std::invalid_argument for empty sizes, for s8 with k above 65536, for
  // other groups and kinds, for a gated epilogue with an odd n, and for an n that `experts` do not divide.
  PackedWeight(Pool& pool, WeightKind kind, Epilogue epilogue, const std::vector<WeightPart>& parts,
               DType dtype, int64_t k, const float* bias, CodeRounding codes, int64_t experts = 1);
  // Stores the codes unchanged.
  PackedWeight(Pool& pool, const PackedShape& shape, const QuantizedSource& source,
               const float* bias);

  const PackedShape& shape() const { return shape_; }
  WeightKind kind() const { return shape_.kind; }
  int64_t n() const { return shape_.n; }
  int64_t k() const { return shape_.k; }
  int64_t experts() const { return shape_.experts; }
  int64_t columns() const {  // of the product, with one expert
    return shape_.n / shape_.experts / (is_gated(shape_.epilogue) ? 2 : 1);
  }
  int64_t nbytes() const;  // what a forward pass reads if it reads all experts

  // All of the weight's memory, in an order that depends only on the shape.
  struct Region {
    uint8_t* data;
    int64_t bytes;
  };
  std::vector<Region> regions();

  // Memory of the blocks, the first region. Other regions always stay in memory.
  PackedMemory& memory() { return memory_; }
  // Must be called before a product reads the weight.
  void use() const { memory_.use(); }

  // Tuning of products with at most `rows` rows of x.
  struct Tuned {
    int64_t rows;
    GemmTuning tuning;
  };
  // In ascending order of `rows`; products with more rows than the last are not tuned. Must not be
  // called while products run.
  void tune(std::vector<Tuned> tuned) { tuned_ = std::move(tuned); }
  GemmTuning tuning(int64_t rows) const;

  // For one expert.
  int64_t blocks() const;
  int64_t block_bytes() const;

  // The kernels' view of an expert's blocks [from, to), without x and y.
  GemmArgs args(int64_t expert, int64_t from, int64_t to) const;
  // All blocks of the first expert; weights without experts count as one expert.
  GemmArgs args() const { return args(0, 0, blocks()); }
  // The weight as stored, as float32 [n, k].
  void unpack(float* out) const;
  // Rows `ids` as an embedding [rows, k] of `dtype`, rounded from what is stored. Not
  // for a gated epilogue, which puts rows in another order.
  void lookup(const int64_t* ids, int64_t rows, DType dtype, void* out) const;

 private:
  int64_t all_blocks() const { return blocks() * shape_.experts; }
  Grouping grouping() const;
  // The row of the source that is row `packed` of the blocks; -1 for padding.
  int64_t source_row(int64_t packed) const;
  void read_row(int64_t packed, float* out) const;
  void read_grouped_row(int64_t packed, const uint8_t* block, float* out) const;
  void set_bias(const float* bias);  // null leaves none
  // Calls body(block) for every block, on the pool.
  template <class Body>
  void each_block(Pool& pool, const Body& body);
  template <class T>
  void pack_block(const std::vector<WeightPart>& parts, int64_t block);
  void interleave_s8(uint8_t* block, const uint8_t* const* rows, int64_t row_bytes);
  void keep_s8_block(const QuantizedSource& source, int64_t block);
  void keep_f8_block(const QuantizedSource& source, int64_t block);
  void keep_grouped_block(const QuantizedSource& source, int64_t block);
  template <class T>
  void round_codes_block(const std::vector<WeightPart>& parts, int64_t block, CodeRounding codes);
  template <class T>
  void pack(Pool& pool, const std::vector<WeightPart>& parts, CodeRounding codes);

  PackedShape shape_;
  PackedMemory memory_;
  std::vector<float> scale_, bias_;  // by packed row
  std::vector<int32_t> row_sum_;
  std::vector<uint8_t> codebook_;      // of u4_book
  std::vector<int32_t> permutation_;
  std::vector<Tuned> tuned_;
};

}  // namespace quire
