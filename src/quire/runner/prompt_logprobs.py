"""Log-probabilities of prompt tokens, which need logits of rows that are not sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.config import LOGITS_ROWS
from quire.core.messages import TokenLogprobs
from quire.ops.array import Array
from quire.ops.reported import ReportedRow
from quire.runner.state import SequenceStates
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
        rows = [ReportedRow(row, token, k) for row, token in enumerate(chunk)]
        entries += ops.report(logits, rows, "raw_logprobs")
    return entries


def any_prompt_logprobs(states: SequenceStates, slots: Column) -> bool:
    """Return whether a sequence of the step still wants those of its prompt."""
    return bool(states.prompt_logprobs) and any(
        _num_wanted(states, slot) is not None for slot in slots.tolist()
    )


def add_prompt_logprobs(
    ops: Ops,
    compute_logits: Callable[[Array], Array],
    states: SequenceStates,
    step: SchedulerOutput,
    slots: Column,
    hidden: Array,
    output: ModelOutput,
) -> None:
    """Add those of the prompt tokens that the step's tokens predict to `output`."""
    row = 0
    for entry, slot in enumerate(slots.tolist()):
        first_row, row = row, row + int(step.num_scheduled_tokens[entry])
        count = _num_wanted(states, slot)
        if count is None:
            continue
        start = int(step.num_computed_tokens[entry]) + 1
        end = min(start + row - first_row, states.sampling[slot].num_prompt_tokens)
        if start >= end:
            continue
        request_id = step.request_ids[entry]
        rows, targets = hidden[first_row : first_row + end - start], states.token_ids[slot]
        try:
            output.prompt_logprobs[request_id] = prompt_logprobs(
                ops, compute_logits, rows, targets[start:end], count
            )
        except FloatingPointError as error:
            output.errors[request_id] = str(error)


def _num_wanted(states: SequenceStates, slot: int) -> int | None:
    """Return the log-probabilities wanted per prompt token; None if none are, or were given."""
    given = states.sampling[slot].num_output_tokens
    return None if given else states.prompt_logprobs.get(slot)
