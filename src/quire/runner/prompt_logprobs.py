"""Log-probabilities of prompt tokens, which need logits where nothing is sampled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.messages import TokenLogprobs
from quire.sampling.logprobs import token_logprobs
from quire.sampling.sampler import sick_logits

ROWS_AT_ONCE = 64
"""Rows of logits that exist at a time: a long prompt's would be gigabytes."""


def prompt_logprobs(
    compute_logits: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: NDArray[np.int32],
    k: int,
) -> list[TokenLogprobs]:
    """One entry a row: how likely `targets[i]`, which follows the token of row i, was.

    Args:
        compute_logits: hidden [n, hidden] → float32 logits [n, vocab].
        hidden: [rows, hidden].
        targets: int32 [rows].
        k: how many of the likeliest tokens to list beside the target.

    Raises:
        FloatingPointError: a row of logits holds NaN or infinity.
    """
    entries = []
    for start in range(0, len(targets), ROWS_AT_ONCE):
        chunk = targets[start : start + ROWS_AT_ONCE].tolist()
        logits = compute_logits(hidden[start : start + len(chunk)]).cpu().numpy()
        for row, token in zip(logits, chunk, strict=True):
            peak = float(row.max())
            if not np.isfinite(peak):
                raise FloatingPointError(sick_logits(peak))
            entries.append(token_logprobs(row, token, k))
    return entries
