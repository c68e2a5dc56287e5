// Low-rank adapters: y[r] += B[i] · (A[i] · x[r]), each row with the adapter i of its own, after
// Punica (Chen et al. 2023). Plain data only: this header is compiled into every ISA.
#pragma once

#include "dtype.h"

namespace quire {

// Every tensor has the table entry's dtype unless its type is written out; strides are in elements.
// Sums are float32, in an order that K and the rank alone decide; y is rounded once.
struct LoraArgs {
  void* y;                 // [rows, n]
  const void* x;           // [rows, k]
  const void* a;           // [adapters, rank, k], contiguous
  const void* b;           // [adapters, rank, n], contiguous: B transposed
  const int64_t* adapter;  // [rows]; a negative one leaves its row alone
  float* low;              // [rows, rank]: A · x, of rows that have an adapter
  int64_t rows, k, n, rank;
  int64_t y_stride, x_stride;
};

// A task of `shrink` is kLoraRows rows and kLoraRanks ranks, of `expand` kLoraRows rows and
// kLoraColumns columns; those of the first kLoraRows rows come first.
enum : int64_t { kLoraRows = 4, kLoraRanks = 4, kLoraColumns = 512 };

struct LoraKernels {
  void (*shrink[kDTypeCount])(const LoraArgs&, int64_t task);
  void (*expand[kDTypeCount])(const LoraArgs&, int64_t task);
};

}  // namespace quire
