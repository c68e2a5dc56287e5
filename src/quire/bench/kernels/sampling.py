"""Sampling at a model's vocabulary: the largest, a draw, the filters, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.bench.kernels.case import Case, copies, noise
from quire.bench.kernels.cases import Cases, Setting
from quire.core.sampling_params import SamplingParams
from quire.ops.sampling import SampleRow

_DEVIATION = 3.0
"""Of the logits: flatter than most models', so that top_p keeps some thousands of tokens."""
_LOGPROBS = 5
_DRAWS = {
    "temperature": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(temperature=0.8, top_k=50),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
}

Of = Callable[[Tensor], object]


def sampling(s: Setting) -> Cases:
    """What follows the logits, float32 [rows, vocab]; all rows of a case have one setting."""
    vocab = s.model.vocab_size

    def case(name: str, rows: int, native: Of, plain: Of | None = None) -> Case:
        unit = 4 * rows * vocab
        logits = (noise((copies(unit), rows, vocab), torch.float32) * _DEVIATION).unbind(0)
        n = len(logits)
        return s.case(
            "sampling", name, str(vocab), rows,
            lambda i: native(logits[i % n]),
            None if plain is None else lambda i: plain(logits[i % n]),
            moved_bytes=unit, rotated_bytes=unit * n,
        )  # fmt: skip

    def draw(name: str, params: SamplingParams, rows: int) -> Case:
        wanted = [SampleRow(i, params, u=(i + 0.5) / rows) for i in range(rows)]
        return case(name, rows, lambda logits: s.ops.sample(logits, wanted))

    def logprobs(rows: int) -> Case:
        counts, tokens = [_LOGPROBS] * rows, [0] * rows
        return case(
            "logprobs", rows,
            lambda logits: s.ops.logprobs(logits, range(rows), tokens, counts),
            lambda logits: torch.log_softmax(logits, dim=-1).topk(min(_LOGPROBS, vocab)),
        )  # fmt: skip

    yield [case("argmax", rows, s.ops.argmax, lambda x: x.max(dim=-1)) for rows in s.rows]
    for name, params in _DRAWS.items():
        yield [draw(name, params, rows) for rows in s.rows]
    yield [logprobs(rows) for rows in s.rows]
