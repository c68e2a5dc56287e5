#include "byte_pairs.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "json_text.h"

namespace quire {

namespace {

constexpr uint32_t kNoToken = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxHoles = 1 << 20;  // ids without a token
constexpr size_t kMaxText = 1u << 30;

[[noreturn]] void fail(const char* what) { throw std::invalid_argument(what); }

uint32_t hash_of(std::string_view token) {
  const uint64_t hash = std::hash<std::string_view>{}(token);
  return static_cast<uint32_t>(hash ^ hash >> 32);
}

size_t hash_of(int32_t left, int32_t right) {
  uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32;
  pair = (pair | static_cast<uint32_t>(right)) * 0x9e3779b97f4a7c15;
  return static_cast<size_t>(pair >> 32);
}

// Twice as many as there are entries, so that few of them collide.
size_t slots_for(size_t entries) { return std::bit_ceil(entries + entries / 2 + 1); }

// Bytes of the character that begins so, 0 if none does.
size_t char_size(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2) return 0;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

// Characters of UTF-8; throws std::invalid_argument if it is none.
int64_t count_chars(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
    const size_t size = char_size(byte(0));
    if (size == 0 || text.size() - at < size) fail("a token is not valid Unicode");
    for (size_t i = 1; i < size; ++i) {
      if ((byte(i) & 0xc0) != 0x80) fail("a token is not valid Unicode");
    }
    const bool overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
    const bool outside = (byte(0) == 0xed && byte(1) > 0x9f) || (byte(0) == 0xf4 && byte(1) > 0x8f);
    if (overlong || outside) fail("a token is not valid Unicode");
    at += size;
  }
  return count;
}

}  // namespace

BytePairs::BytePairs(std::string_view vocabulary, std::string_view merges, BytePairOptions options)
    : options_(std::move(options)) {
  JsonText json(vocabulary);
  json.expect('{');
  for (bool more = !json.take('}'); more; more = json.more('}')) {
    const std::string token(json.string());
    json.expect(':');
    add(token, json.number());
  }
  text_.shrink_to_fit();
  spans_.shrink_to_fit();
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    static constexpr char digits[] = "0123456789ABCDEF";
    byte_ids_[byte] = id(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + '>');
  }
  for (size_t code = 0; code < short_ids_.size(); ++code) {
    const char spelled[] = {static_cast<char>(code < 0x80 ? code : 0xc0 | code >> 6),
                            static_cast<char>(0x80 | (code & 0x3f))};
    short_ids_[code] = id({spelled, code < 0x80 ? size_t{1} : size_t{2}});
  }
  if (!options_.unknown.empty()) {
    unknown_id_ = id(options_.unknown);
    if (unknown_id_ < 0) fail("the vocabulary lacks the unknown token");
  }
  read_merges(merges);
}

void BytePairs::add(std::string_view token, int64_t id) {
  if (id > size_ + kMaxHoles || text_.size() > kMaxText) fail("an id is too large");
  if (slots_for(static_cast<size_t>(size_) + 1) > slots_.size()) resize_slots();
  if (id >= end()) spans_.resize(static_cast<size_t>(id) + 1, {0, kNoToken});
  Span& span = spans_[static_cast<size_t>(id)];
  if (span.size != kNoToken || this->id(token) >= 0) fail("a token or an id comes twice");
  span = {static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(token.size())};
  max_bytes_ = std::max(max_bytes_, static_cast<int64_t>(token.size()));
  max_chars_ = std::max(max_chars_, count_chars(token));
  text_ += token;
  const uint32_t hash = hash_of(token);
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {hash, static_cast<int32_t>(id)};
  ++size_;
}

void BytePairs::resize_slots() {
  std::vector<Slot> old(std::max<size_t>(1024, 2 * slots_.size()), {0, -1});
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t at = slot.hash & (slots_.size() - 1);
    while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

void BytePairs::read_merges(std::string_view merges) {
  std::vector<Merge> found;
  std::string left;
  JsonText json(merges);
  json.expect('[');
  for (bool more = !json.take(']'); more; more = json.more(']')) {
    const auto rank = static_cast<int32_t>(found.size());
    if (json.take('[')) {
      left = json.string();
      json.expect(',');
      found.push_back(merge_of(left, json.string(), rank));
      json.expect(']');
      continue;
    }
    const std::string_view both = json.string();
    const size_t space = both.find(' ');
    if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos ||
        both.starts_with("#version")) {
      fail("a merge is not one of two tokens");
    }
    found.push_back(merge_of(both.substr(0, space), both.substr(space + 1), rank));
  }
  merges_.assign(slots_for(found.size()), {-1, -1, -1, -1});
  for (const Merge& one : found) merges_[slot_of(one.left, one.right)] = one;  // the last one counts
}

BytePairs::Merge BytePairs::merge_of(std::string_view left, std::string_view right,
                                     int32_t rank) const {
  const int32_t first = id(left), second = id(right), made = id(std::string(left).append(right));
  if (first < 0 || second < 0 || made < 0) fail("a merge is of tokens that are not there");
  return {first, second, rank, made};
}

size_t BytePairs::slot_of(int32_t left, int32_t right) const {
  size_t at = hash_of(left, right) & (merges_.size() - 1);
  while (merges_[at].left >= 0 && (merges_[at].left != left || merges_[at].right != right)) {
    at = (at + 1) & (merges_.size() - 1);
  }
  return at;
}

const BytePairs::Merge* BytePairs::find_merge(int32_t left, int32_t right) const {
  const Merge& found = merges_[slot_of(left, right)];
  return found.left < 0 ? nullptr : &found;
}

int32_t BytePairs::id(std::string_view token) const {
  if (slots_.empty()) return -1;
  const uint32_t hash = hash_of(token);
  for (size_t at = hash & (slots_.size() - 1); slots_[at].id >= 0;
       at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].hash != hash) continue;
    const Span& span = spans_[static_cast<size_t>(slots_[at].id)];
    if (token == std::string_view(text_.data() + span.begin, span.size)) return slots_[at].id;
  }
  return -1;
}

bool BytePairs::find(int64_t id, std::string_view& token) const {
  if (id < 0 || id >= end() || spans_[static_cast<size_t>(id)].size == kNoToken) return false;
  const Span& span = spans_[static_cast<size_t>(id)];
  token = {text_.data() + span.begin, span.size};
  return true;
}

int32_t BytePairs::char_id(std::string_view letter) const {
  if (letter.size() > 2) return id(letter);
  const auto first = static_cast<unsigned char>(letter[0]);
  if (letter.size() == 1) return short_ids_[first];
  const auto second = static_cast<unsigned char>(letter[1]);
  return short_ids_[(first & 0x1fu) << 6 | (second & 0x3fu)];
}

bool BytePairs::split_bytes(std::string_view letter, std::vector<Symbol>& symbols) const {
  if (!options_.falls_back_to_bytes) return false;
  const auto token = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (std::any_of(letter.begin(), letter.end(), [&](char c) { return token(c) < 0; })) return false;
  for (const char byte : letter) symbols.push_back({token(byte), 0, 0});
  return true;
}

// An unknown character waits for the next one that is known or unknown; bytes overtake it. So does
// the `tokenizers` library.
void BytePairs::split(std::string_view word, std::vector<Symbol>& symbols) const {
  bool waits = false;
  const auto flush = [&] {
    if (waits) symbols.push_back({unknown_id_, 0, 0});
    waits = false;
  };
  for (size_t at = 0, size = 0; at < word.size(); at += size) {
    size = std::min(std::max(char_size(static_cast<unsigned char>(word[at])), size_t{1}),
                    word.size() - at);
    const std::string_view letter = word.substr(at, size);
    if (const int32_t known = char_id(letter); known >= 0) {
      flush();
      symbols.push_back({known, 0, 0});
    } else if (!split_bytes(letter, symbols) && unknown_id_ >= 0) {
      if (!options_.fuses_unknown) flush();
      waits = true;
    }
  }
  flush();
}

// Merges the leftmost pair of the lowest rank until there is none. As in the `tokenizers` library,
// a candidate is taken if its place still makes the same token, though of other parts.
void BytePairs::apply_merges(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& queue = scratch.queue;
  const auto symbol = [&](int32_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  const auto later = [](const Candidate& one, const Candidate& other) {
    return one.rank != other.rank ? one.rank > other.rank : one.at > other.at;
  };
  const auto consider = [&](int32_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    if (const Merge* found = find_merge(symbol(at).id, symbol(symbol(at).next).id)) {
      queue.push_back({found->rank, at, found->made});
      std::push_heap(queue.begin(), queue.end(), later);
    }
  };
  queue.clear();
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t at = 0; at < count; ++at) {
    symbol(at).previous = at - 1;
    symbol(at).next = at + 1 < count ? at + 1 : -1;
  }
  for (int32_t at = 0; at + 1 < count; ++at) consider(at);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const Candidate best = queue.back();
    queue.pop_back();
    Symbol& left = symbol(best.at);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const Merge* found = find_merge(left.id, right.id);
    if (found == nullptr || found->made != best.made) continue;
    left.id = best.made;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
}

void BytePairs::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (options_.takes_whole_words) {
    if (const int32_t whole = id(word); whole >= 0) return ids.push_back(whole);
  }
  scratch.symbols.clear();
  split(word, scratch.symbols);
  if (scratch.symbols.size() > 1) apply_merges(scratch);
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace quire
