// A reader of the JSON that a vocabulary is: strings, numbers and brackets, one after the other.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace quire {

// Throws std::invalid_argument for all that it does not expect.
class JsonText {
 public:
  explicit JsonText(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // Whether the next character is this one; then it is behind us.
  bool take(char wanted) {
    space();
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail();
  }

  // Whether another member follows in the object or array that `closing` ends.
  bool more(char closing) {
    if (take(closing)) return false;
    expect(',');
    return true;
  }

  int64_t number() {
    space();
    int64_t value = 0;
    const char* const begin = at_;
    for (; at_ != end_ && *at_ >= '0' && *at_ <= '9' && at_ - begin < 10; ++at_) {
      value = value * 10 + (*at_ - '0');
    }
    if (at_ == begin) fail();
    return value;
  }

  // UTF-8, valid until the next call.
  std::string_view string() {
    expect('"');
    const char* const begin = at_;
    for (;; ++at_) {
      if (at_ == end_ || static_cast<unsigned char>(*at_) < 0x20) fail();
      if (*at_ == '"') return {begin, static_cast<size_t>(at_++ - begin)};
      if (*at_ == '\\') break;
    }
    unescaped_.assign(begin, at_);
    while (at_ != end_ && *at_ != '"') {
      if (static_cast<unsigned char>(*at_) < 0x20) fail();
      if (*at_ != '\\') {
        unescaped_ += *at_++;
      } else {
        ++at_;
        escape();
      }
    }
    expect('"');
    return unescaped_;
  }

 private:
  [[noreturn]] static void fail() { throw std::invalid_argument("this is no vocabulary in JSON"); }

  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }

  uint32_t hex() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == end_) fail();
      const char c = *at_;
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail();
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }

  void escape() {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (at_ == end_) fail();
    const char name = *at_++;
    if (const size_t i = kNames.find(name); i != std::string_view::npos) {
      unescaped_ += kMeant[i];
      return;
    }
    if (name != 'u') fail();
    uint32_t code = hex();
    if (code >= 0xd800 && code < 0xdc00) {
      if (end_ - at_ < 6 || *at_++ != '\\' || *at_++ != 'u') fail();
      const uint32_t low = hex();
      if (low < 0xdc00 || low > 0xdfff) fail();
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      fail();
    }
    append(code);
  }

  void append(uint32_t code) {
    const auto put = [this](uint32_t byte) { unescaped_ += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
      put(0xc0 | code >> 6);
    } else {
      if (code < 0x10000) {
        put(0xe0 | code >> 12);
      } else {
        put(0xf0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3f));
      }
      put(0x80 | (code >> 6 & 0x3f));
    }
    put(0x80 | (code & 0x3f));
  }

  const char* at_;
  const char* end_;
  std::string unescaped_;
};

}  // namespace quire
