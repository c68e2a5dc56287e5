// A batch's sequences, as the ops of attention take them.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "../cpu/attention.h"
#include "../cpu/op.h"

namespace quire {

// query_start_loc [num + 1], seq_lens [num], block_tables [num, stride], whole [num] or null.
struct Sequences {
  const int32_t *query_start_loc, *seq_lens, *block_tables;
  int64_t num, block_table_stride;
  const int32_t* whole;
};

// Sets what follows from the rows of a step's inputs.
inline void set_sequences(AttentionArgs& a, const std::vector<StepInput>& inputs) {
  const auto input = [&](const void* at) {
    return *std::find_if(inputs.begin(), inputs.end(),
                         [&](const StepInput& i) { return i.at == at; });
  };
  a.num_seqs = input(a.seq_lens).rows;
  a.block_table_stride = input(a.block_tables).stride;
}

}  // namespace quire
