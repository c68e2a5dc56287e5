// A linear layer's weight in the order in which the GEMM kernels read it (gemm.h draws it).
#pragma once

#include <stdint.h>

#include <utility>
#include <vector>

#include "kernels.h"
#include "packed_memory.h"
#include "pool.h"

namespace quire {

// Some rows of a weight that is about to be packed, `stride` elements apart.
struct WeightPart {
  const void* data;
  int64_t rows, stride;
};

// How weights of kind u4 are rounded.
struct U4Rounding {
  int64_t group;  // 32, 64 or 128
  decltype(Kernels::quantize_u4) quantize;
};

// A weight that is 4 bits already (pack_u4.h), each array contiguous.
struct U4Weight {
  int64_t n, k, group;
  const uint8_t* q;      // [n, k], 0 … 15
  const float* scale;    // [n, ceil(k / group)]
  const float* second;   // [n, ceil(k / group)]: zero points or offsets
  bool zero_points;
};

// What a packed weight is, apart from its numbers: its memory's sizes follow from it.
struct PackedShape {
  WeightKind kind;
  Epilogue epilogue;
  int64_t n, k;
  int64_t group;  // of u4; not used by the others
  bool zero_points, bias;
};

class PackedWeight {
 public:
  // Zeros, for numbers that were packed before. Throws as the other one does.
  explicit PackedWeight(const PackedShape& shape);
  // Packs the rows of all parts [n, k], one part after the other, on the pool; bias is float32 [n]
  // or null. s8 and s8_a16 are rounded to nearest: W = q * scale, scale = max|W| / 127 of each row;
  // u4 as `u4` says. Throws std::invalid_argument for empty sizes, for s8 with k above 65536, for
  // other groups, and for the epilogue silu_mul with an odd n.
  PackedWeight(Pool& pool, WeightKind kind, Epilogue epilogue, const std::vector<WeightPart>& parts,
               DType dtype, int64_t k, const float* bias, U4Rounding u4);
  PackedWeight(Pool& pool, Epilogue epilogue, const U4Weight& source, const float* bias);

  PackedShape shape() const {
    return {kind_, epilogue_, n_, k_, group_, zero_points_, !bias_.empty()};
  }
  WeightKind kind() const { return kind_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t columns() const { return epilogue_ == kSiluMul ? n_ / 2 : n_; }  // of the product
  int64_t nbytes() const;  // all that a forward pass reads

  // All numbers, in an order that the shape gives.
  struct Region {
    uint8_t* data;
    int64_t bytes;
  };
  std::vector<Region> regions();

  // Where the blocks lie, which are the first region; the others stay in memory.
  PackedMemory& memory() { return memory_; }
  // A product is about to read the weight.
  void use() const { memory_.use(); }

  // Of products with at most `rows` rows of x.
  struct Tuned {
    int64_t rows;
    GemmTuning tuning;
  };
  // In ascending order of `rows`, the last of which ends what is tuned. Not while products run.
  void tune(std::vector<Tuned> tuned) { tuned_ = std::move(tuned); }
  GemmTuning tuning(int64_t rows) const;

  // The kernels' view, without x and y.
  GemmArgs args() const;
  // The weight as stored, as float32 [n, k].
  void unpack(float* out) const;
  // Rows `ids` as an embedding [rows, k] of `dtype`, rounded from what is stored. Not
  // for the epilogue silu_mul, which puts rows in another order.
  void lookup(const int64_t* ids, int64_t rows, DType dtype, void* out) const;

 private:
  int64_t blocks() const;
  int64_t block_bytes() const;
  // The row of the source that is row `packed` of the blocks; -1 for padding.
  int64_t source_row(int64_t packed) const;
  void read_row(int64_t packed, float* out) const;
  void set_bias(const float* bias);  // null leaves none
  // Calls body(block) for every block, on the pool.
  template <class Body>
  void each_block(Pool& pool, const Body& body);
  template <class T>
  void pack_block(const std::vector<WeightPart>& parts, int64_t block);
  template <class T>
  void round_u4_block(const std::vector<WeightPart>& parts, int64_t block, U4Rounding u4);
  template <class T>
  void pack(Pool& pool, const std::vector<WeightPart>& parts, U4Rounding u4);

  WeightKind kind_;
  Epilogue epilogue_;
  int64_t n_, k_, group_;
  bool zero_points_;
  PackedMemory memory_;
  std::vector<float> scale_, bias_;  // by packed row
  std::vector<int32_t> row_sum_;
  std::vector<Tuned> tuned_;
};

}  // namespace quire
