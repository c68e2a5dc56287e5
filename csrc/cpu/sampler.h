// Samples tokens from logits: edits, temperature, top_k, min_p, top_p, the draw. Baseline code that
// calls the kernels of sample.h.
//
// Parameters have the reference's meaning (quire.ops.sample_row). Arithmetic on logits equals the
// reference's to the bit. Weights use another exp and another order of sums. So a token can differ from
// the reference's if a deciding sum is within its rounding error of the compared number. A row's token
// depends only on that row.
#pragma once

#include <stdint.h>

#include <mutex>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace quire {

// Distinct token ids in [0, vocab), with optional values; the caller owns the memory.
struct TokenSet {
  const int64_t* ids = nullptr;
  int64_t size = 0;
  const float* values = nullptr;
};

// Parameters of one sampled token. temperature 0 is greedy; it is at most 100; top_k 0, top_p 1 and min_p 0 keep all tokens.
struct SampleRow {
  int64_t row = 0;  // of the logits
  double temperature = 0, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  double u = 0;  // in [0, 1)
  bool keyed = false;
  DrawKey key;

  // Edits, in the order in which they apply. `mask` has a bit for each token, set if the token is allowed;
  // null allows all.
  // `counted` holds how often each token was generated.
  const uint32_t* mask = nullptr;
  bool restricted = false;
  TokenSet allowed, banned, bias, counted;
  float repetition = 1, frequency = 0, presence = 0;
  bool edited() const {
    return mask || restricted || banned.size > 0 || bias.size > 0 || counted.size > 0;
  }
};

// One row's log-probabilities: that of `token`, then the k largest in descending order, ties by id, then
// those of the last `named` of `ids`, which the caller sets.
struct LogprobRow {
  int64_t row = 0, token = 0, k = 0, named = 0;  // k <= vocab
  const SampleRow* sampled = nullptr;  // the values are those that its token was drawn from; null: the model's
  bool as_logits = false;              // instead of log-probabilities
  int64_t* ids = nullptr;              // [1 + k + named]
  double* values = nullptr;            // [1 + k + named]
  int64_t rank = 0;                    // of `token`, from 1; equal values have the same rank
};

// float [rows, vocab].
struct Logits {
  const float* x;
  int64_t vocab, stride;
  const float* row(int64_t i) const { return x + i * stride; }
};

class RowSampler;

// Samples several rows in parallel, one thread per row. Keeps memory for intermediate results for each
// thread; only what is used is touched.
class Sampler {
 public:
  Sampler(const Kernels& kernels, Pool& pool);
  ~Sampler();

  // tokens[i] is the token of rows[i], -1 if its largest logit after edits is not finite.
  void sample(const Logits& logits, const std::vector<SampleRow>& rows, int64_t* tokens);

  // The logits of the rows are neither NaN nor +infinity, nor all -infinity.
  void logprobs(const Logits& logits, std::vector<LogprobRow>& rows);

 private:
  template <class Body>
  void each(int64_t rows, int64_t vocab, const Body& body);

  const SampleKernels& kernels_;
  Pool& pool_;
  std::vector<RowSampler> row_samplers_;  // one per thread
  std::mutex lock_;
};

}  // namespace quire
