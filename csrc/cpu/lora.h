// Low-rank adapters: y[r] += scale · B[i] · (A[i] · x[r]), each row with the adapter i of its own,
// after Punica (Chen et al. 2023). Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"

namespace quire {

// A task of `shrink` is kLoraRows rows and kLoraRanks ranks of a part, of `expand` kLoraRows rows
// and kLoraColumns columns; those of the first kLoraRows rows come first. A layer has at most
// kLoraParts parts.
enum : int64_t { kLoraRows = 4, kLoraRanks = 4, kLoraColumns = 512, kLoraParts = 3 };

// What an adapter adds to one part of a layer; of rank 0, nothing. The table entry's dtype.
struct LoraEntry {
  const void* a;  // [rank, k], contiguous
  const void* b;  // [rank, the part's columns], contiguous: B transposed
  int64_t rank;
  double scale;
};

// Every tensor has the table entry's dtype unless its type is written out; strides are in elements.
// With expand_wide y is float32.
// Sums are float32, in an order that K and the rank alone decide; y is rounded once.
struct LoraArgs {
  void* y;                   // [rows, n]: the parts of a merged layer, one beside the other
  const void* x;             // [rows, k]
  const LoraEntry* entries;  // [adapters, parts]
  const int64_t* adapter;    // [rows]; a negative one leaves its row alone
  float* low;                // [rows, parts, rank]: scale · A · x, of rows that have an adapter
  int64_t rows, k, n;
  int64_t rank;              // the highest of these rows' adapters
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
