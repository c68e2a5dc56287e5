// Byte pair encoding over flat tables: a quarter of the memory of maps of strings.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// As in tokenizer.json.
struct BytePairOptions {
  std::string unknown;  // the token of characters that the vocabulary lacks; empty: they vanish
  bool fuses_unknown = false;
  bool falls_back_to_bytes = false;
  bool takes_whole_words = false;  // a word that is a token needs no merges
};

class BytePairs {
 public:
  // vocabulary: a JSON object of tokens and ids. merges: a JSON array of pairs, or of "left right".
  // Throws std::invalid_argument where these are damaged or do not belong together.
  BytePairs(std::string_view vocabulary, std::string_view merges, BytePairOptions options);

  // Scratch memory of one caller of `encode`.
  struct Symbol {
    int32_t id, previous, next;  // indices; -1 at the ends. An id of -1 is no symbol any more.
  };
  struct Candidate {
    int32_t rank, at, made;
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };

  // Appends the ids of a word, valid UTF-8.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  int32_t id(std::string_view token) const;  // -1 if there is none
  // Whether there is a token `id`, which is then in `token`.
  bool find(int64_t id, std::string_view& token) const;

  int64_t size() const { return size_; }
  int64_t end() const { return static_cast<int64_t>(spans_.size()); }  // of the ids
  // Of the longest token.
  int64_t max_bytes() const { return max_bytes_; }
  int64_t max_chars() const { return max_chars_; }

 private:
  struct Span {
    uint32_t begin, size;
  };
  struct Slot {
    uint32_t hash;
    int32_t id;  // -1 is free
  };
  struct Merge {
    int32_t left, right;  // -1 is free
    int32_t rank, made;
  };

  void add(std::string_view token, int64_t id);
  void read_merges(std::string_view merges);
  Merge merge_of(std::string_view left, std::string_view right, int32_t rank) const;
  void resize_slots();
  size_t slot_of(int32_t left, int32_t right) const;  // of the merge, or of the place for it
  const Merge* find_merge(int32_t left, int32_t right) const;
  int32_t char_id(std::string_view letter) const;
  void split(std::string_view word, std::vector<Symbol>& symbols) const;
  bool split_bytes(std::string_view letter, std::vector<Symbol>& symbols) const;
  void apply_merges(Scratch& scratch) const;

  BytePairOptions options_;
  std::string text_;  // of all tokens
  std::vector<Span> spans_;
  std::vector<Slot> slots_;
  std::vector<Merge> merges_;
  std::array<int32_t, 256> byte_ids_;     // of "<0x0A>"
  std::array<int32_t, 0x800> short_ids_;  // of characters of one and two bytes
  int32_t unknown_id_ = -1;
  int64_t size_ = 0, max_bytes_ = 0, max_chars_ = 0;
};

}  // namespace quire
