// A checksum that shows damage, not malice.
#pragma once

#include <stdint.h>
#include <string.h>

namespace quire {

// Four chains of words, so that one multiplication need not wait for the other. Every step can be
// undone, so a change of one word always shows; and words that change places do.
class Checksum {
 public:
  explicit Checksum(uint64_t seed) : lanes_{seed, 1, 2, 3} {}

  // Continues with these bytes and, with Copy, writes them to `to`: once through memory for both.
  // The same bytes in other pieces have another checksum, unless all but the last are whole lines
  // of 32.
  template <bool Copy>
  void add(const uint8_t* from, int64_t bytes, uint8_t* to) {
    uint64_t lanes[4];
    memcpy(lanes, lanes_, sizeof lanes);
    int64_t at = 0;
    for (; at + 32 <= bytes; at += 32) {
      uint64_t words[4];
      memcpy(words, from + at, sizeof words);
      if constexpr (Copy) memcpy(to + at, words, sizeof words);
      for (int lane = 0; lane < 4; ++lane) lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
    }
    for (; at < bytes; ++at) {
      if constexpr (Copy) to[at] = from[at];
      lanes[0] = (lanes[0] ^ from[at]) * kPrime;
    }
    memcpy(lanes_, lanes, sizeof lanes);
  }

  uint64_t value() const {
    uint64_t sum = 0;
    for (const uint64_t lane : lanes_) sum = ((sum ^ lane) * kPrime) ^ sum >> 32;
    return sum;
  }

 private:
  static constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
  uint64_t lanes_[4];
};

}  // namespace quire
