// An operation of a decoder's step: its data, and all that a plan must know of it. Baseline code.
//
// An op runs at once, or is recorded into a plan (plan.h), which runs it in later steps with other
// addresses and numbers of rows. Both call `run`, so both give the same bits. Each op is one struct,
// in csrc/ops, with its binding.
#pragma once

#include <stdint.h>
#include <string.h>

#include <vector>

#include "linear.h"
#include "packed_weight.h"
#include "pool.h"

namespace quire {

// What a step brings along: [rows, …], rows `stride` elements apart.
struct StepInput {
  const void* at;
  int64_t rows, stride;

  bool operator==(const StepInput&) const = default;
};

// Indices, one per row, into a table of `limit` rows; from `least` on, which may stand for none.
// `table`: where that is, if its rows may be picked from what a step computes.
struct IndexCheck {
  const char* what;
  const int64_t* indices;
  int64_t limit;
  int64_t least = 0;
  const void* table = nullptr;
};

// Throws std::out_of_range that names the first of `rows` indices that is not in [least, limit).
void check_indices(const IndexCheck& check, int64_t rows);

// One of an op's pointers to what a step computes or brings along; weights and caches are not among
// them. `constant`: it may point to one all the same.
struct Operand {
  void* field;
  bool constant = false;

  const void* get() const {
    const void* at;
    memcpy(&at, field, sizeof at);
    return at;
  }
  void set(const void* at) const { memcpy(field, &at, sizeof at); }
};

template <class... T>
std::vector<Operand> operands_at(T*&... fields) {
  return {Operand{&fields}...};
}

class Op {
 public:
  virtual ~Op() = default;

  virtual const char* name() const = 0;
  // To read and to write.
  virtual int64_t& rows() = 0;
  // Computes the op with all of the pool's threads. Its `indices` are the caller's to check.
  virtual void run(Pool& pool) = 0;
  virtual std::vector<Operand> operands() = 0;
  virtual std::vector<IndexCheck> indices() const { return {}; }
  // Bytes that the op must move, as it stands: weights, activations, keys and values.
  virtual int64_t bytes() const = 0;
  // Its arithmetic: two per multiply-add, and one for a function such as exp.
  virtual int64_t flops() const { return 0; }
  // Takes what else than addresses a step's inputs say.
  virtual void set_inputs(const std::vector<StepInput>&) {}

  // What an op of rows writes, if that is one matrix. Its tasks can also make those rows ready for
  // `next`, which reads them: no second pass over them, and no meeting of the threads.
  virtual const void* result() const { return nullptr; }
  virtual void run_and_prepare(Pool&, const Linear&) {}

  // Of a linear layer: its weight, what it reads row for row, and its beginning.
  virtual const PackedWeight* weight() const { return nullptr; }
  virtual const void* source() const { return nullptr; }
  virtual Linear start(Pool&) const { return {}; }
};

// Whether `next` is a linear op that reads just what `op` writes, a row for a row.
inline bool feeds(Op& op, Op& next) {
  return next.weight() != nullptr && op.result() != nullptr && op.result() == next.source() &&
         op.rows() == next.rows();
}

}  // namespace quire
