"""Log-probabilities of prompt tokens, which need logits of rows that are not sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.config import LOGITS_ROWS
from quire.core.messages import TokenLogprobs
from quire.ops.array import Array
from quire.sampling.sampler import sick_logits

if TYPE_CHECKING:
    from quire.ops.interface import Ops


def prompt_logprobs(
    ops: Ops,
    compute_logits: Callable[[Array], Array],
    hidden: Array,
    targets: NDArray[np.int32],
    k: int,
) -> list[TokenLogprobs]:
    """Return one entry per row: the log-probability of `targets[i]`, which follows row i's token.

    Args:
        ops: compute the largest logits and the log-probabilities.
        compute_logits: hidden [n, hidden] → float32 logits [n, vocab].
        hidden: [rows, hidden].
        targets: int32 [rows].
        k: number of likeliest tokens to list in addition to the target.

    Raises:
        FloatingPointError: a row of logits holds NaN or infinity.
    """
    entries: list[TokenLogprobs] = []
    for start in range(0, len(targets), LOGITS_ROWS):
        chunk = targets[start : start + LOGITS_ROWS].tolist()
        logits = compute_logits(hidden[start : start + len(chunk)])
        for peak in ops.argmax(logits)[1].tolist():
            if not math.isfinite(peak):
                raise FloatingPointError(sick_logits(peak))
        entries += ops.logprobs(logits, range(len(chunk)), chunk, [k] * len(chunk))
    return entries
