// Weights in a mapped file, read ahead of the products that use them, in a cycle.
#pragma once

#include <stdint.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

// A thread that has the weights in use, and the following ones up to `ahead_bytes`, in memory; after
// the last comes the first, for the next step. With `give_back` it gives the pages of all others
// back to the system, cached ones included; without, only the system takes them.
//
// It sleeps until another weight is used. Being late costs time, never a wrong number: a product
// reads what it needs itself.
class WeightStream {
 public:
  struct Stretch {
    uint8_t* data;
    int64_t bytes;
  };

  // The stretches in the order of their use. Throws std::system_error without a thread to have.
  WeightStream(std::vector<Stretch> stretches, int64_t ahead_bytes, bool give_back);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Stretch `index` is about to be read, by whichever thread; waits for nothing.
  void use(int64_t index);
  // Stretch `index` is about to be unmapped.
  void remove(int64_t index);
  // Bytes that the thread has asked for, and given back, so far.
  int64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  int64_t given_back_bytes() const { return given_back_bytes_.load(std::memory_order_relaxed); }

 private:
  void run();
  void read_ahead(int64_t first);
  void read(int64_t index, int64_t first);
  void give_back_all_but(int64_t first);
  // How many stretches from `first` on are wanted.
  int64_t wanted(int64_t first) const;

  std::mutex mutex_;  // held to advise the system about a range, or to unmap it
  std::vector<Stretch> stretches_;  // null: removed
  std::vector<std::atomic<bool>> touched_;  // some of its pages have come in
  std::vector<bool> read_;                  // all of them have
  const int64_t ahead_bytes_;
  const bool give_back_;
  std::atomic<int64_t> current_;
  std::atomic<int64_t> read_bytes_{0}, given_back_bytes_{0};
  std::thread thread_;  // the last: it uses the others
};

}  // namespace quire
