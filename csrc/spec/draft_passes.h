// All passes of a draft model in a step: each reads the tokens that the one before it drew.
#pragma once

#include <cstdint>
#include <vector>

#include "../cpu/plan.h"
#include "../cpu/sampler.h"
#include "drafts.h"

namespace quire {

// A plan without parts in Python, and where its result is: [rows, stride] at result + offset * rows.
struct WholePlan {
  Plan* plan;
  const uint8_t* result;
  int64_t offset, stride;

  const void* run(const std::vector<StepInput>& inputs, int64_t rows) const {
    plan->begin(inputs);
    plan->run(0, plan->size());
    return result + offset * rows;
  }
};

// How a sequence's tokens are drawn. `row` has no edits.
struct DraftDraw {
  SampleRow row;
  uint64_t seed;
};

class DraftPasses {
 public:
  // A step's most tokens and sequences; tables have `width` blocks per sequence.
  DraftPasses(WholePlan forward, WholePlan logits, Sampler& sampler, int64_t vocab,
              int64_t block_size, int64_t max_tokens, int64_t max_sequences, int64_t width);

  // A sequence computes tokens [start, start + taken), and then one token per pass. It gets `wanted`
  // drafts, which are written behind its tokens. Its output has `num_output` tokens.
  struct Sequence {
    int64_t slot, start, taken, wanted, num_output;
    const DraftDraw* draw;
  };

  // Those with more drafts come first. `tables` is [slots, width].
  void run(const TokenRows& tokens, const int32_t* tables, const std::vector<Sequence>& sequences);

 private:
  void write(const TokenRows& tokens, const Sequence& s, int64_t index, int64_t start, int64_t count);
  const float* logits_of(int64_t tokens, int64_t sequences, int64_t rows);

  WholePlan forward_, logits_;
  Sampler& sampler_;
  int64_t vocab_, block_size_, width_, filled_ = 0;
  std::vector<int64_t> ids_, positions_, slots_, rows_, chosen_;
  std::vector<int32_t> starts_, lengths_, tables_;
};

}  // namespace quire
