// Low-rank adapters: y[r] += scale · B[i] · (A[i] · x[r]), with one adapter i per row, after Punica
// (Chen et al. 2023). Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"

namespace quire {

// A task of `shrink` is kLoraRows rows and kLoraRanks ranks of a part, of `expand` kLoraRows rows
// and kLoraColumns columns; those of the first kLoraRows rows come first. A layer has at most
// kLoraParts parts.
enum : int64_t { kLoraRows = 4, kLoraRanks = 4, kLoraColumns = 512, kLoraParts = 4 };

// An adapter's matrices for one part of a layer, in the table entry's dtype; rank 0 adds nothing.
struct LoraEntry {
  const void* a;  // [rank, k], contiguous
  const void* b;  // [rank, the part's columns], contiguous: B transposed
  int64_t rank;
  double scale;
};

// Every tensor has the table entry's dtype unless its type is written out; strides are in elements.
// With expand_wide y is float32.
// Sums are float32; their order depends only on K and the rank. y is rounded once.
struct LoraArgs {
  void* y;                   // [rows, n]: the parts of a merged layer next to each other
  const void* x;             // [rows, k]
  const LoraEntry* entries;  // [adapters, parts]
  const int64_t* adapter;    // [rows]; negative is none
  float* low;                // [rows, parts, rank]: scale · A · x of rows with an adapter
  int64_t rows, k, n;
  int64_t rank;              // highest rank of these rows' adapters
  int64_t adapters, parts;
  int64_t ends[kLoraParts];  // of each part: its last column + 1
  int64_t y_stride, x_stride;
};

struct LoraKernels {
  void (*shrink[kDTypeCount])(const LoraArgs&, int64_t task);
  void (*expand[kDTypeCount])(const LoraArgs&, int64_t task);
  void (*expand_wide[kDTypeCount])(const LoraArgs&, int64_t task);
};

}  // namespace quire
