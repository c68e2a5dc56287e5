#include "suffix_index.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace quire {

namespace {

constexpr int32_t kSeparator = -1;  // also the tokens of a prompt of embeddings
constexpr int64_t kFirstCapacity = 256;
constexpr int64_t kEverything = -1;  // a mask that changes no position

}  // namespace

ContextChains::ContextChains(int64_t capacity) : capacity_(capacity), grows_(capacity == 0) {
  for (Chain& chain : chains_) {
    chain.heads.resize(static_cast<size_t>(capacity));
    chain.previous.resize(static_cast<size_t>(capacity));
  }
}

ContextChains::Hashes ContextChains::context_hashes(const int32_t* text, int64_t size) {
  Hashes hashes{};
  uint64_t hash = 0;
  int64_t n = 0;
  for (size_t i = kOrders.size(); i-- > 0 && kOrders[i] <= size;) {
    for (; n < kOrders[i]; ++n) {
      if (text[size - 1 - n] == kSeparator) return hashes;
      hash = with_token(hash, text[size - 1 - n]);
    }
    hashes[i] = hash | 1;  // 0 means none
  }
  return hashes;
}

void ContextChains::add(int64_t at, const int32_t* before, int64_t size) {
  if (grows_ && at >= capacity_) grow();
  const Hashes hashes = context_hashes(before, size);
  const size_t mask = static_cast<size_t>(capacity_) - 1, index = static_cast<size_t>(at) & mask;
  for (size_t i = 0; i < kOrders.size(); ++i) {
    chains_[i].previous[index] = 0;
    if (!hashes[i]) continue;
    uint32_t& head = chains_[i].heads[hashes[i] >> 20 & mask];
    chains_[i].previous[index] = std::exchange(head, static_cast<uint32_t>(index + 1));
  }
  end_ = at + 1;
}

// A chain's new heads all lead to its old positions. Those that they do not belong to cost visits
// only: the caller compares tokens.
void ContextChains::grow() {
  const size_t old = static_cast<size_t>(capacity_);
  capacity_ = std::max(kFirstCapacity, 4 * capacity_);
  const size_t size = static_cast<size_t>(capacity_);
  for (Chain& chain : chains_) {
    chain.previous.resize(size);
    chain.heads.resize(size);
    for (size_t i = old; old && i < size; ++i) chain.heads[i] = chain.heads[i & (old - 1)];
  }
}

SuffixIndex::SuffixIndex(int64_t slots, const SuffixLimits& limits)
    : limits_(limits),
      texts_(static_cast<size_t>(slots)),
      answers_(static_cast<size_t>(limits.max_tokens)),
      answer_chains_(std::max<int64_t>(limits.max_tokens, 1)) {
  if (limits.max_depth < 1 || limits.max_answers < 0 || limits.max_tokens < 1 ||
      limits.max_tokens > int64_t{1} << 30 || (limits.max_tokens & (limits.max_tokens - 1))) {
    throw std::invalid_argument("invalid limits of suffix decoding");
  }
}

void SuffixIndex::begin(int64_t slot, int64_t first_own, bool shares) {
  Text& text = texts_.at(static_cast<size_t>(slot));
  text = Text{};
  text.first_own = first_own;
  text.shares = shares && limits_.max_answers > 0;
}

void SuffixIndex::end(int64_t slot, const int32_t* tokens, int64_t num_tokens) {
  const Text& text = texts_.at(static_cast<size_t>(slot));
  // A longer answer would evict all others: its end is enough.
  const int64_t half = limits_.max_tokens / 2;
  const int64_t first = std::max(text.first_own, num_tokens - half);
  if (text.shares && first < num_tokens) {
    answer_begins_.push_back(answers_end_);
    if (static_cast<int64_t>(answer_begins_.size()) > limits_.max_answers) {
      answer_begins_.pop_front();
    }
    for (int64_t i = first; i < num_tokens; ++i) append(tokens[i]);
    append(kSeparator);
  }
  begin(slot, 0, false);
}

void SuffixIndex::append(int32_t token) {
  const int64_t mask = limits_.max_tokens - 1;
  std::array<int32_t, ContextChains::kOrders[0]> before;
  const int64_t size = std::min<int64_t>(answers_end_, before.size());
  for (int64_t i = 0; i < size; ++i) {
    before[static_cast<size_t>(i)] =
        answers_[static_cast<size_t>((answers_end_ - size + i) & mask)];
  }
  answer_chains_.add(answers_end_, before.data(), size);
  answers_[static_cast<size_t>(answers_end_++ & mask)] = token;
}

int64_t SuffixIndex::propose(int64_t slot, const int32_t* tokens, int64_t num_tokens, int64_t most,
                             int32_t* drafts) {
  Text& text = texts_.at(static_cast<size_t>(slot));
  for (; text.num_indexed < num_tokens; ++text.num_indexed) {
    text.chains.add(text.num_indexed, tokens, text.num_indexed);
  }
  most = std::min(most, limits_.max_depth);
  Guess best = search({text.chains, tokens, kEverything, 0, num_tokens}, tokens, num_tokens, most);
  if (text.shares && !answer_begins_.empty()) {
    const int64_t oldest = std::max(answer_begins_.front(), answers_end_ - limits_.max_tokens);
    const Source answers{answer_chains_, answers_.data(), limits_.max_tokens - 1, oldest,
                         answers_end_};
    Guess guess = search(answers, tokens, num_tokens, most);
    if (guess.score > best.score) best = std::move(guess);
  }
  std::copy(best.tokens.begin(), best.tokens.end(), drafts);
  return static_cast<int64_t>(best.tokens.size());
}

// The better guess of two: by all positions with the longest context that has any, and by those of
// them that match longest.
Guess SuffixIndex::search(const Source& source, const int32_t* tail, int64_t size,
                          int64_t most) const {
  std::vector<Candidate> candidates;
  int64_t longest = 0, shared = 0;
  source.chains.find(tail, size, [&](int64_t order, int64_t at) {
    const int64_t limit = std::min({limits_.max_depth, size, at - source.begin});
    int64_t matched = 0;
    while (matched < limit && source.at(at - 1 - matched) == tail[size - 1 - matched]) ++matched;
    if (matched < std::min(order, limits_.max_depth) || at >= source.end) return false;
    candidates.push_back({at, matched});
    longest = std::max(longest, matched);
    shared = order;
    return true;
  });
  if (candidates.empty()) return {};
  std::vector<Candidate> nearest;
  for (Candidate& candidate : candidates) {
    if (candidate.matched == longest) nearest.push_back(candidate);
    candidate.matched = shared;
  }
  Guess guess = vote(source, std::move(nearest), most);
  if (longest > shared) {
    Guess other = vote(source, std::move(candidates), most);
    if (other.score > guess.score) return other;
  }
  return guess;
}

// Follows the most frequent continuation of `candidates`, of equal match, newest first.
Guess SuffixIndex::vote(const Source& source, std::vector<Candidate> candidates,
                        int64_t most) const {
  Guess guess;
  double probability = 1.0;
  const double factor = limits_.max_factor * static_cast<double>(candidates.front().matched);
  if (factor < static_cast<double>(most)) most = static_cast<int64_t>(factor);
  for (int64_t step = 0; step < most; ++step) {
    int32_t winner = kSeparator;
    size_t votes = 0;
    for (const Candidate& candidate : candidates) {
      const int64_t at = candidate.position + step;
      const int32_t token = at < source.end ? source.at(at) : kSeparator;
      if (token == kSeparator || token == winner) continue;
      const auto agrees = [&](const Candidate& other) {
        return other.position + step < source.end && source.at(other.position + step) == token;
      };
      const auto count =
          static_cast<size_t>(std::count_if(candidates.begin(), candidates.end(), agrees));
      if (count > votes) {
        winner = token;
        votes = count;
      }
    }
    if (!votes) break;
    probability *= static_cast<double>(votes) / static_cast<double>(candidates.size());
    if (probability < limits_.min_probability) break;
    guess.tokens.push_back(winner);
    guess.score += probability;
    std::erase_if(candidates, [&](const Candidate& candidate) {
      const int64_t at = candidate.position + step;
      return at >= source.end || source.at(at) != winner;
    });
  }
  return guess;
}

}  // namespace quire
