// An op of a decoder's step: its data, and the methods that a plan needs. Baseline code.
//
// An op runs immediately, or is recorded into a plan (plan.h), which runs it in later steps with other
// addresses and numbers of rows. Both call `run`, so both give the same bits. Each op is one struct in
// csrc/ops, with its binding.
#pragma once

#include <stdint.h>
#include <string.h>

#include <vector>

#include "linear.h"
#include "packed_weight.h"
#include "pool.h"

namespace quire {

// An input of a step: [rows, …], rows `stride` elements apart.
struct StepInput {
  const void* at;
  int64_t rows, stride;

  bool operator==(const StepInput&) const = default;
};

// Indices, one per row, into a table of `limit` rows; the smallest valid one is `least`, such as -1 for
// none. `table` is the table's address if a step may compute it.
struct IndexCheck {
  const char* what;
  const int64_t* indices;
  int64_t limit;
  int64_t least = 0;
  const void* table = nullptr;
};

// Throws std::out_of_range that names the first of `rows` indices that is not in [least, limit).
void check_indices(const IndexCheck& check, int64_t rows);

// One of an op's pointers to a step's inputs or results; not to weights or caches, unless it is
// `constant`.
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
  // The number of rows; a plan sets it.
  virtual int64_t& rows() = 0;
  // Computes the op with all of the pool's threads. The caller checks its `indices`.
  virtual void run(Pool& pool) = 0;
  virtual std::vector<Operand> operands() = 0;
  virtual std::vector<IndexCheck> indices() const { return {}; }
  // Bytes that the op must move with its present rows: weights, activations, keys and values.
  virtual int64_t bytes() const = 0;
  // Its arithmetic: two per multiply-add, and one for a function such as exp.
  virtual int64_t flops() const { return 0; }
  // Of a mixture of experts: adds how many rows each expert has, and at the end how many have some.
  virtual void tally(std::vector<int64_t>&) const {}
  // Sets everything else that depends on the step's inputs, other than addresses.
  virtual void set_inputs(const std::vector<StepInput>&) {}

  // The result of an op on rows, if it is one matrix. Its tasks can also prepare these rows for `next`,
  // which reads them. This saves a second pass and a barrier.
  virtual const void* result() const { return nullptr; }
  virtual void run_and_prepare(Pool&, const Linear&) {}

  // A linear layer's weight, its input, and its first part.
  virtual const PackedWeight* weight() const { return nullptr; }
  virtual const void* source() const { return nullptr; }
  virtual Linear start(Pool&) const { return {}; }
};

// Whether `next` is a linear op that reads exactly the rows that `op` writes.
inline bool feeds(Op& op, Op& next) {
  return next.weight() != nullptr && op.result() != nullptr && op.result() == next.source() &&
         op.rows() == next.rows();
}

}  // namespace quire
