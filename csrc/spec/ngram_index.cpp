#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "drafts.h"

namespace quire {

namespace {

constexpr size_t kMaxGram = 64;

}  // namespace

void DraftIndex::propose(const TokenRows& rows, const int64_t* slots, const int64_t* most,
                         int64_t* counts, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const int64_t slot = slots[i], known = rows.num_tokens[slot];
    const int64_t room = std::min(most[i], rows.width - known);
    int32_t* tokens = rows.row(slot);
    counts[i] = room > 0 ? propose(slot, tokens, known, room, tokens + known) : 0;
  }
}

NgramIndex::NgramIndex(int64_t slots, int64_t min_tokens, int64_t max_tokens)
    : min_tokens_(static_cast<size_t>(min_tokens)),
      max_tokens_(static_cast<size_t>(max_tokens)),
      texts_(static_cast<size_t>(slots)) {
  if (min_tokens < 1 || max_tokens < min_tokens || max_tokens_ > kMaxGram) {
    throw std::invalid_argument("an n-gram has 1 to 64 tokens");
  }
}

void NgramIndex::begin(int64_t slot, int64_t, bool) { texts_.at(static_cast<size_t>(slot)) = {}; }

void NgramIndex::end(int64_t slot, const int32_t*, int64_t) { begin(slot, 0, false); }

int64_t NgramIndex::propose(int64_t slot, const int32_t* tokens, int64_t num_tokens, int64_t most,
                            int32_t* drafts) {
  Text& text = texts_.at(static_cast<size_t>(slot));
  // An n-gram can be continued only if a token follows it.
  while (text.num_indexed + 1 < num_tokens) add(text, tokens, ++text.num_indexed);
  if (text.entries.empty()) return 0;
  std::array<uint64_t, kMaxGram + 1> hashes;
  const size_t longest = std::min(max_tokens_, static_cast<size_t>(num_tokens));
  uint64_t hash = 0;
  for (size_t n = 1; n <= longest; ++n) {
    hashes[n] = hash = with_token(hash, tokens[num_tokens - static_cast<int64_t>(n)]);
  }
  const size_t mask = text.entries.size() - 1;
  for (size_t n = longest; n >= min_tokens_; --n) {
    for (size_t at = hashes[n] & mask; text.entries[at].position; at = (at + 1) & mask) {
      if (text.entries[at].hash != hashes[n]) continue;
      const int64_t first = text.entries[at].position;
      const int64_t limit = std::min(most, num_tokens - first);
      int64_t count = 0;
      // A prompt of embeddings has no token ids, but negative numbers.
      for (; count < limit && tokens[first + count] >= 0; ++count) {
        drafts[count] = tokens[first + count];
      }
      return count;
    }
  }
  return 0;
}

// Adds the n-grams that end before position `end`.
void NgramIndex::add(Text& text, const int32_t* tokens, int64_t end) const {
  const size_t longest = std::min(max_tokens_, static_cast<size_t>(end));
  uint64_t hash = 0;
  for (size_t n = 1; n <= longest; ++n) {
    hash = with_token(hash, tokens[end - static_cast<int64_t>(n)]);
    if (n >= min_tokens_) insert(text, hash, end);
  }
}

void NgramIndex::insert(Text& text, uint64_t hash, int64_t position) {
  if (2 * (text.used + 1) > text.entries.size()) grow(text);
  const size_t mask = text.entries.size() - 1;
  size_t at = hash & mask;
  for (; text.entries[at].position; at = (at + 1) & mask) {
    if (text.entries[at].hash == hash) return;
  }
  text.entries[at] = {hash, position};
  ++text.used;
}

void NgramIndex::grow(Text& text) {
  std::vector<Entry> old(std::max<size_t>(256, 4 * text.entries.size()));
  std::swap(old, text.entries);
  const size_t mask = text.entries.size() - 1;
  for (const Entry& entry : old) {
    if (!entry.position) continue;
    size_t at = entry.hash & mask;
    while (text.entries[at].position) at = (at + 1) & mask;
    text.entries[at] = entry;
  }
}

}  // namespace quire
