// Suffix decoding (arXiv 2411.04975): what followed earlier occurrences of the text's end, in the
// same text and in earlier answers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "drafts.h"

namespace quire {

// Positions in a text by the tokens before them. Each length of context in kOrders has chains of
// positions, newest first. A lookup visits a bounded number of them, so its time does not depend
// on the length of the text.
class ContextChains {
 public:
  static constexpr std::array<int64_t, 4> kOrders{8, 4, 2, 1};
  static constexpr int kMaxVisits = 16;

  // The newest `capacity` positions, a power of two; 0 means that all stay, and memory grows.
  explicit ContextChains(int64_t capacity);

  // Enters position `at`, the next one, whose context is the end of before[0, size).
  void add(int64_t at, const int32_t* before, int64_t size);

  // Calls visit(order, position) for positions whose context of `order` tokens may be the end of
  // `tail`, longest contexts first, until it has returned true in some order.
  template <class Visit>
  void find(const int32_t* tail, int64_t size, Visit visit) const {
    const Hashes hashes = context_hashes(tail, size);
    const size_t mask = static_cast<size_t>(capacity_) - 1;
    bool found = false;
    for (size_t i = 0; i < kOrders.size() && !found && end_; ++i) {
      if (!hashes[i]) continue;
      uint32_t link = chains_[i].heads[hashes[i] >> 20 & mask];
      int64_t last = end_;
      for (int visits = 0; link && visits < kMaxVisits; ++visits) {
        // The newest position with this index: an overwritten one shows by its tokens.
        const int64_t at = end_ - 1 - ((end_ - link) & static_cast<int64_t>(mask));
        if (at >= last) break;
        found |= visit(kOrders[i], at);
        last = at;
        link = chains_[i].previous[static_cast<size_t>(at) & mask];
      }
    }
  }

 private:
  using Hashes = std::array<uint64_t, kOrders.size()>;
  // Indices of positions plus one; 0 is the end of a chain.
  struct Chain {
    std::vector<uint32_t> heads;
    std::vector<uint32_t> previous;
  };

  static Hashes context_hashes(const int32_t* text, int64_t size);
  void grow();

  int64_t capacity_;
  bool grows_;
  int64_t end_ = 0;
  std::array<Chain, kOrders.size()> chains_;
};

// Drafts, and the expected number of right ones.
struct Guess {
  std::vector<int32_t> tokens;
  double score = 0.0;
};

struct SuffixLimits {
  int64_t max_depth;       // most tokens of a context, and of drafts
  int64_t max_answers;     // earlier answers
  int64_t max_tokens;      // of all earlier answers, a power of two
  double max_factor;       // drafts per token of context
  double min_probability;  // of the draft, with those before it
};

class SuffixIndex final : public DraftIndex {
 public:
  SuffixIndex(int64_t slots, const SuffixLimits& limits);

  using DraftIndex::propose;
  void begin(int64_t slot, int64_t first_own, bool shares) override;
  void end(int64_t slot, const int32_t* tokens, int64_t num_tokens) override;
  int64_t propose(int64_t slot, const int32_t* tokens, int64_t num_tokens, int64_t most,
                  int32_t* drafts) override;

 private:
  struct Text {
    ContextChains chains{0};
    int64_t num_indexed = 1;  // position 0 has no context
    int64_t first_own = 0;
    bool shares = false;
  };
  // A text to search: position p is tokens[p & mask], for p in [begin, end).
  struct Source {
    const ContextChains& chains;
    const int32_t* tokens;
    int64_t mask;
    int64_t begin;
    int64_t end;

    int32_t at(int64_t position) const { return tokens[position & mask]; }
  };
  // A position to continue from, and how many tokens before it match.
  struct Candidate {
    int64_t position;
    int64_t matched;
  };

  Guess search(const Source& source, const int32_t* tail, int64_t size, int64_t most) const;
  Guess vote(const Source& source, std::vector<Candidate> candidates, int64_t most) const;
  void append(int32_t token);

  SuffixLimits limits_;
  std::vector<Text> texts_;
  // Earlier answers, each followed by a separator, in a ring.
  std::vector<int32_t> answers_;
  ContextChains answer_chains_;
  std::deque<int64_t> answer_begins_;
  int64_t answers_end_ = 0;
};

}  // namespace quire
