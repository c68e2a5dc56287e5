// Bindings of the sampler (cpu/sampler.h). Token ids are checked here; the GIL is released.
#include "bind.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/sampler.h"

namespace nb = nanobind;

namespace quire {

namespace {

using Address = uintptr_t;

TokenSet tokens(const char* what, Address ids, int64_t size, Address values, int64_t vocab) {
  const TokenSet set{pointer<const int64_t>(ids), size, pointer<const float>(values)};
  for (int64_t i = 0; i < size; ++i) {
    if (set.ids[i] < 0 || set.ids[i] >= vocab) {
      throw std::out_of_range(std::string(what) + " has token " + std::to_string(set.ids[i]) +
                              "; the vocabulary is 0 to " + std::to_string(vocab - 1));
    }
  }
  return set;
}

void check_row(int64_t row, int64_t rows) {
  if (row < 0 || row >= rows) throw std::out_of_range("a row is not among those of the logits");
}

Logits logits_of(const Matrix& m) {
  if (m.dtype != kFloat32) throw std::invalid_argument("logits is " + describe(m) + "; wanted float32");
  return {static_cast<const float*>(m.at), m.cols, m.stride};
}

void sample(Sampler& sampler, const Matrix& logits, const nb::list& rows, Address tokens) {
  const Logits x = logits_of(logits);
  std::vector<SampleRow> copied;
  copied.reserve(rows.size());
  for (const auto row : rows) {
    copied.push_back(nb::cast<const SampleRow&>(row));
    check_row(copied.back().row, logits.rows);
  }
  const nb::gil_scoped_release unlocked;
  sampler.sample(x, copied, pointer<int64_t>(tokens));
}

void check_named(const LogprobRow& row, int64_t vocab) {
  for (int64_t i = 1 + row.k; i <= row.k + row.named; ++i) {
    if (row.ids[i] < 0 || row.ids[i] >= vocab) {
      throw std::out_of_range("a named token is not in [0, vocab)");
    }
  }
}

// Row i writes ids and values at columns [0, k] of row i of [rows, 1 + k + named]; the other columns have
// the named tokens. `sampled` is empty, or has an entry for each row.
void logprobs(Sampler& sampler, const Matrix& logits, const Indices& rows, const Indices& tokens,
              int64_t k, Address ids, Address values, Address ranks, const nb::list& sampled,
              int64_t named, bool as_logits) {
  const Logits x = logits_of(logits);
  const int64_t count = rows.size, vocab = logits.cols;
  expect(tokens.size == count, "tokens", tokens, "logits", logits);
  if (k < 0 || k > vocab) throw std::invalid_argument("k is not in [0, vocab]");
  std::vector<SampleRow> copied;
  copied.reserve(sampled.size());
  for (const auto each : sampled) copied.push_back(nb::cast<const SampleRow&>(each));
  if (!copied.empty() && static_cast<int64_t>(copied.size()) != count) {
    throw std::invalid_argument("sampled has another number of rows");
  }
  std::vector<LogprobRow> wanted(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    LogprobRow& row = wanted[static_cast<size_t>(i)];
    row.row = rows.at[i];
    check_row(row.row, logits.rows);
    row.token = tokens.at[i];
    if (row.token < 0 || row.token >= vocab) throw std::out_of_range("a token is not in [0, vocab)");
    row.k = k;
    row.named = named;
    row.sampled = copied.empty() ? nullptr : &copied[static_cast<size_t>(i)];
    row.as_logits = as_logits;
    row.ids = pointer<int64_t>(ids) + i * (1 + k + named);
    row.values = pointer<double>(values) + i * (1 + k + named);
    check_named(row, vocab);
  }
  const nb::gil_scoped_release unlocked;
  sampler.logprobs(x, wanted);
  for (int64_t i = 0; i < count; ++i) {
    pointer<int64_t>(ranks)[i] = wanted[static_cast<size_t>(i)].rank;
  }
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<SampleRow>(m, "SampleRow")
      .def("__init__",
           [](SampleRow* self, int64_t row, double temperature, int64_t top_k, double top_p,
              double min_p, double u) {
             new (self) SampleRow;
             self->row = row;
             self->temperature = temperature;
             self->top_k = top_k;
             self->top_p = top_p;
             self->min_p = min_p;
             self->u = u;
           })
      .def("key",
           [](SampleRow& self, uint64_t key) {
             self.keyed = true;
             self.key = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
           })
      .def("mask",
           [](SampleRow& self, Address words, int64_t size, int64_t vocab) {
             if (size * 32 < vocab) throw std::out_of_range("the mask ends before the vocabulary");
             self.mask = pointer<const uint32_t>(words);
           })
      .def("allow", [](SampleRow& self, Address ids, int64_t size, int64_t vocab) {
        self.restricted = true;
        self.allowed = tokens("allowed_token_ids", ids, size, 0, vocab);
      })
      .def("ban", [](SampleRow& self, Address ids, int64_t size, int64_t vocab) {
        self.banned = tokens("bad_words or stop_token_ids", ids, size, 0, vocab);
      })
      .def("bias", [](SampleRow& self, Address ids, int64_t size, int64_t vocab, Address values) {
        self.bias = tokens("logit_bias", ids, size, values, vocab);
      })
      .def("penalize", [](SampleRow& self, Address ids, int64_t size, int64_t vocab,
                          Address counts, float repetition, float frequency, float presence) {
        self.counted = tokens("the prompt or output", ids, size, counts, vocab);
        self.repetition = repetition;
        self.frequency = frequency;
        self.presence = presence;
      });
  nb::class_<Sampler>(m, "Sampler")
      .def(nb::init<const Kernels&, Pool&>(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("sample", &sample)
      .def("logprobs", &logprobs);
}

}  // namespace quire
