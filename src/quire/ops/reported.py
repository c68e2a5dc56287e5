"""Log-probabilities as a request's answer reports them, in each of `LogprobsMode`."""

from __future__ import annotations

from dataclasses import field

import msgspec
import numpy as np

from quire.core.config import LogprobsMode
from quire.core.messages import TokenLogprobs
from quire.ops.filters import FloatRow, Scaled
from quire.ops.sample_row import SampleRow, processed, row_logprobs
from quire.system.records import dataclass


@dataclass(slots=True)
class ReportedRow:
    """What is reported of one row of logits.

    Attributes:
        row: of the logits.
        token: that was chosen.
        count: of the likeliest tokens to list.
        named: further tokens to list.
        sampled: what `token` was sampled with; None for a greedy row without edits.
    """

    row: int
    token: int
    count: int
    named: list[int] = field(default_factory=list)
    sampled: SampleRow | None = None


def report_row(logits: FloatRow, wanted: ReportedRow, mode: LogprobsMode) -> TokenLogprobs:
    """Return the values of the token, of the likeliest ones and of those named, in float64.

    Args:
        logits: the model's, float32 [vocab].
    """
    is_raw = mode in ("raw_logprobs", "raw_logits")
    values = logits.astype(np.float64) if is_raw else processed(logits, wanted.sampled)
    entry = row_logprobs(values, wanted.token, wanted.count)
    if mode in ("raw_logits", "processed_logits"):
        entry = msgspec.structs.replace(entry, logprobs=values[entry.token_ids].tolist())
    return with_named(entry, values, wanted.named)


def with_named(entry: TokenLogprobs, logits: FloatRow | Scaled, named: list[int]) -> TokenLogprobs:
    """Add the values of the tokens `named`, from their logits' distance to the first."""
    chosen, *others = logits[[entry.token_ids[0], *named]].tolist()
    values = [entry.logprobs[0] + (logit - chosen) for logit in others]
    return TokenLogprobs(
        entry.token_ids + named, entry.logprobs + values, entry.rank, num_named=len(named)
    )
