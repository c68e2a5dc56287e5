"""Log-probabilities as a request's answer reports them, in each of `LogprobsMode`."""

from __future__ import annotations

import msgspec
import numpy as np

from quire.core.config import LogprobsMode
from quire.core.messages import TokenLogprobs
from quire.ops.filters import FloatRow, Scaled
from quire.ops.sample_row import SampleRow, processed, row_logprobs


def in_mode(
    mode: LogprobsMode, logits: FloatRow, row: SampleRow | None, token: int, count: int
) -> tuple[TokenLogprobs, Scaled]:
    """Return the values of `token` and of the `count` likeliest tokens, and the logits behind them.

    Args:
        logits: the model's, float32 [vocab].
        row: what `token` was sampled with; None for a greedy row without edits.
    """
    is_raw = mode in ("raw_logprobs", "raw_logits")
    values = logits.astype(np.float64) if is_raw else processed(logits, row)
    entry = row_logprobs(values, token, count)
    if mode in ("raw_logits", "processed_logits"):
        entry = msgspec.structs.replace(entry, logprobs=values[entry.token_ids].tolist())
    return entry, values


def with_named(entry: TokenLogprobs, logits: FloatRow | Scaled, named: list[int]) -> TokenLogprobs:
    """Add the values of the tokens `named`, from their logits' distance to the first."""
    chosen, *others = logits[[entry.token_ids[0], *named]].tolist()
    values = [entry.logprobs[0] + (logit - chosen) for logit in others]
    return TokenLogprobs(
        entry.token_ids + named, entry.logprobs + values, entry.rank, num_named=len(named)
    )
