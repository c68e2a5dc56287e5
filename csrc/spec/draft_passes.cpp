#include "draft_passes.h"

#include <algorithm>
#include <cstring>

namespace quire {

namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The key of the draw of an output token, as quire.sampling.rng has it.
DrawKey draw_key(uint64_t seed, int64_t position) {
  const uint64_t key = mix(mix(seed + kGolden) + (static_cast<uint64_t>(position) + 1) * kGolden);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

size_t index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

DraftPasses::DraftPasses(WholePlan forward, WholePlan logits, Sampler& sampler, int64_t vocab,
                         int64_t block_size, int64_t max_tokens, int64_t max_sequences,
                         int64_t width)
    : forward_(forward), logits_(logits), sampler_(sampler), vocab_(vocab),
      block_size_(block_size), width_(width), ids_(index(max_tokens)),
      positions_(index(max_tokens)), slots_(index(max_tokens)), rows_(index(max_sequences)),
      chosen_(index(max_sequences)), starts_(index(max_sequences + 1)),
      lengths_(index(max_sequences)), tables_(index(max_sequences * width)) {}

// Appends the inputs of `count` tokens of sequence number `i` of the pass.
void DraftPasses::write(const TokenRows& tokens, const Sequence& s, int64_t i, int64_t start,
                        int64_t count) {
  const int32_t* const row = tokens.row(s.slot);
  const int32_t* const table = tables_.data() + i * width_;
  for (int64_t at = start; at < start + count; ++at, ++filled_) {
    // Prompts of embeddings have no ids; any token will do.
    ids_[index(filled_)] = std::max(row[at], 0);
    positions_[index(filled_)] = at;
    slots_[index(filled_)] = table[at / block_size_] * block_size_ + at % block_size_;
  }
  starts_[index(i + 1)] = static_cast<int32_t>(filled_);
  lengths_[index(i)] = static_cast<int32_t>(start + count);
}

const float* DraftPasses::logits_of(int64_t tokens, int64_t sequences, int64_t rows) {
  const void* const hidden = forward_.run(
      {{ids_.data(), tokens, 1},
       {positions_.data(), tokens, 1},
       {starts_.data(), sequences + 1, 1},
       {lengths_.data(), sequences, 1},
       {tables_.data(), sequences, width_},
       {slots_.data(), tokens, 1},
       {rows_.data(), rows, 1}},
      rows);
  if (rows == 0) return nullptr;
  return static_cast<const float*>(logits_.run({{hidden, rows, forward_.stride}}, rows));
}

void DraftPasses::run(const TokenRows& tokens, const int32_t* tables,
                      const std::vector<Sequence>& sequences) {
  const int64_t size = static_cast<int64_t>(sequences.size());
  int64_t drafting = 0;
  filled_ = 0;
  for (int64_t i = 0; i < size; ++i) {
    const Sequence& s = sequences[index(i)];
    // The last draft is not computed.
    const int64_t end = s.start + s.taken + std::max<int64_t>(s.wanted - 1, 0);
    const int64_t blocks = std::min(width_, (end + block_size_ - 1) / block_size_);
    std::memcpy(tables_.data() + i * width_, tables + s.slot * width_,
                index(blocks) * sizeof(int32_t));
    write(tokens, s, i, s.start, s.taken);
    if (s.wanted > 0) rows_[index(drafting++)] = filled_ - 1;
  }
  const float* logits = logits_of(filled_, size, drafting);
  std::vector<SampleRow> rows;
  for (int64_t number = 0; drafting > 0; ++number) {
    rows.clear();
    for (int64_t i = 0; i < drafting; ++i) {
      const Sequence& s = sequences[index(i)];
      rows.push_back(s.draw->row);
      rows.back().row = i;
      rows.back().keyed = true;
      rows.back().key = draw_key(s.draw->seed, s.num_output + number);
    }
    sampler_.sample({logits, vocab_, logits_.stride}, rows, chosen_.data());
    int64_t next = 0;
    filled_ = 0;
    for (int64_t i = 0; i < drafting; ++i) {
      const Sequence& s = sequences[index(i)];
      const int64_t end = s.start + s.taken + number;
      tokens.row(s.slot)[end] = static_cast<int32_t>(std::max<int64_t>(chosen_[index(i)], 0));
      if (s.wanted <= number + 1) continue;
      rows_[index(next++)] = filled_;
      write(tokens, s, i, end, 1);
    }
    drafting = next;
    if (drafting > 0) logits = logits_of(drafting, drafting, drafting);
  }
}

}  // namespace quire
