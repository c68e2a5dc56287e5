"""Sampling at a model's vocabulary size: argmax, a draw, the filters, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from quire.bench.kernels.case import Call, Case, copies, noise
from quire.bench.kernels.cases import Cases, Setting
from quire.core.dtypes import FLOAT32
from quire.core.sampling_params import SamplingParams
from quire.ops.array import Array
from quire.ops.reported import ReportedRow
from quire.ops.sample_row import SampleRow

if TYPE_CHECKING:
    from quire.bench.peers.torch_calls import TorchCalls

_DEVIATION = 3.0
"""Standard deviation of the logits; it is small, so that top_p keeps thousands of tokens."""
_LOGPROBS = 5
_DRAWS = {
    "temperature": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(temperature=0.8, top_k=50),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
}

Of = Callable[[Array], object]
PlainOf = Callable[["TorchCalls", list[Array]], Call]


def sampling(s: Setting) -> Cases:
    """Yield the ops after the logits, float32 [rows, vocab]; a case's rows have one setting."""
    vocab = s.model.vocab_size

    def case(name: str, rows: int, native: Of, plain: PlainOf | None = None) -> Case:
        unit = 4 * rows * vocab
        drawn = noise(s.random, (copies(unit), rows, vocab), FLOAT32)
        logits = list(s.ops.array(drawn * np.float32(_DEVIATION)))
        n = len(logits)
        return s.case(
            "sampling", name, str(vocab), rows,
            lambda i: native(logits[i % n]),
            None if plain is None else lambda torch: plain(torch, logits),
            moved_bytes=unit, rotated_bytes=unit * n,
        )  # fmt: skip

    def draw(name: str, params: SamplingParams, rows: int) -> Case:
        wanted = [SampleRow(i, params, key=int(s.random.integers(2**63))) for i in range(rows)]
        return case(name, rows, lambda logits: s.ops.sample(logits, wanted))

    def logprobs(rows: int) -> Case:
        wanted = [ReportedRow(row, 0, _LOGPROBS) for row in range(rows)]
        return case(
            "logprobs", rows,
            lambda logits: s.ops.report(logits, wanted, "raw_logprobs"),
            lambda torch, logits: torch.logprobs(logits, min(_LOGPROBS, vocab)),
        )  # fmt: skip

    def argmax(rows: int) -> Case:
        return case("argmax", rows, s.ops.argmax, lambda torch, logits: torch.argmax(logits))

    yield [argmax(rows) for rows in s.rows]
    for name, params in _DRAWS.items():
        yield [draw(name, params, rows) for rows in s.rows]
    yield [logprobs(rows) for rows in s.rows]
