#include "sampler.h"

#include <algorithm>
#include <atomic>

#include "row_sampler.h"

namespace quire {

Sampler::Sampler(const Kernels& kernels, Pool& pool)
    : kernels_(*kernels.sample), pool_(pool), row_samplers_(static_cast<size_t>(pool.threads())) {}

Sampler::~Sampler() = default;

// Calls body(sampler, row) for each row. There is one sampler per thread; each takes rows until none is
// left.
template <class Body>
void Sampler::each(int64_t rows, int64_t vocab, const Body& body) {
  if (rows == 0) return;
  const std::lock_guard one_call(lock_);
  struct Job {
    Sampler& sampler;
    const Body& body;
    int64_t rows;
    std::atomic<int64_t> next{0};
  } job{*this, body, rows};
  const auto work = [](void* context, int64_t task) {
    Job& j = *static_cast<Job*>(context);
    for (int64_t i; (i = j.next.fetch_add(1)) < j.rows;) {
      j.body(j.sampler.row_samplers_[static_cast<size_t>(task)], i);
    }
  };
  const int64_t tasks = std::min<int64_t>(rows, pool_.threads());
  for (int64_t i = 0; i < tasks; ++i) row_samplers_[static_cast<size_t>(i)].reserve(vocab);
  if (tasks == 1) return work(&job, 0);  // wakes no other thread
  pool_.run(tasks, work, &job);
}

void Sampler::sample(const Logits& logits, const std::vector<SampleRow>& rows, int64_t* tokens) {
  each(static_cast<int64_t>(rows.size()), logits.vocab, [&](RowSampler& sampler, int64_t i) {
    const SampleRow& row = rows[static_cast<size_t>(i)];
    tokens[i] = sampler.sample(kernels_, logits.row(row.row), logits.vocab, row);
  });
}

void Sampler::logprobs(const Logits& logits, std::vector<LogprobRow>& rows) {
  each(static_cast<int64_t>(rows.size()), logits.vocab, [&](RowSampler& sampler, int64_t i) {
    LogprobRow& row = rows[static_cast<size_t>(i)];
    sampler.logprobs(kernels_, logits.row(row.row), logits.vocab, row);
  });
}

}  // namespace quire
