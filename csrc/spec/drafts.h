// Drafts from text that was seen before, without a model: prompt lookup and suffix decoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

// Mixes one more token into the hash of the tokens after it.
inline uint64_t with_token(uint64_t hash, int32_t token) {
  uint64_t x = hash * 0x9e3779b97f4a7c15u + static_cast<uint32_t>(token) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 27);
}

// Token rows of all sequences: row `slot` has `width` places and num_tokens[slot] tokens.
struct TokenRows {
  int32_t* tokens;
  const int64_t* num_tokens;
  int64_t width;

  int32_t* row(int64_t slot) const { return tokens + slot * width; }
};

// Finds drafts for each slot's text. A slot's text only grows until `end`.
class DraftIndex {
 public:
  virtual ~DraftIndex() = default;

  // Starts an empty text. Its tokens from `first_own` on are this sequence's own output; `shares`
  // says whether it may use, and add to, the texts of earlier sequences.
  virtual void begin(int64_t slot, int64_t first_own, bool shares) = 0;
  // Forgets the slot's text, which is tokens[0, num_tokens).
  virtual void end(int64_t slot, const int32_t* tokens, int64_t num_tokens) = 0;
  // Writes up to `most` drafts for the text tokens[0, num_tokens); returns how many.
  virtual int64_t propose(int64_t slot, const int32_t* tokens, int64_t num_tokens, int64_t most,
                          int32_t* drafts) = 0;

  // Proposes for the slots of a batch, behind their tokens, and counts the drafts of each.
  void propose(const TokenRows& rows, const int64_t* slots, const int64_t* most, int64_t* counts,
               int64_t size);
};

// Prompt lookup: what followed the first occurrence of the text's last n tokens, for the largest n
// in [min, max] that occurred before.
class NgramIndex final : public DraftIndex {
 public:
  NgramIndex(int64_t slots, int64_t min_tokens, int64_t max_tokens);

  using DraftIndex::propose;
  void begin(int64_t slot, int64_t first_own, bool shares) override;
  void end(int64_t slot, const int32_t* tokens, int64_t num_tokens) override;
  int64_t propose(int64_t slot, const int32_t* tokens, int64_t num_tokens, int64_t most,
                  int32_t* drafts) override;

 private:
  // From an n-gram's hash to the position behind its first occurrence; 0 marks a free place.
  struct Entry {
    uint64_t hash;
    int64_t position;
  };
  struct Text {
    std::vector<Entry> entries;
    size_t used = 0;
    int64_t num_indexed = 0;
  };

  void add(Text& text, const int32_t* tokens, int64_t end) const;
  static void insert(Text& text, uint64_t hash, int64_t position);
  static void grow(Text& text);

  size_t min_tokens_;
  size_t max_tokens_;
  std::vector<Text> texts_;
};

}  // namespace quire
