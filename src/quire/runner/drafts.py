"""Drafts: guesses at the next tokens of sequences, which one pass of the model verifies.

Row j of a sequence is sampled as if its first j drafts were output: at their position, with their
penalties, their grammar mask and their noise. So each row yields the very token that a step
of its own would, if all drafts before it are right. The tokens up to the first wrong draft count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quire.core.batch import Column, ModelOutput, NewSequence, SchedulerOutput
from quire.sampling.rng import uniform
from quire.sampling.sampler import SampleResult, SamplingBatch
from quire.sampling.state import SamplingState

if TYPE_CHECKING:
    from quire.ops.array import Array
    from quire.ops.op_times import OpMeter
    from quire.runner.state import SequenceStates

Agrees = Callable[[SamplingState, int, int, int], bool]
"""Whether a sampled token accepts a draft: the state, the draft's number, token and draft."""


class Proposer(Protocol):
    """Guesses tokens. A wrong guess costs time and changes no token.

    Attributes:
        meters: of its ops, if it runs some.
    """

    meters: Sequence[OpMeter]

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        """Start a sequence whose tokens are in `slot`."""

    def end(self, states: SequenceStates, slot: int) -> None:
        """Forget the sequence in `slot`; its tokens are still there."""

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        """Write up to most[i] drafts behind the tokens of slots[i]; return how many, int64."""


class RowReader(Protocol):
    """Part of a proposer that drafts from the target's rows.

    Attributes:
        taps: layers whose inputs it reads; () means what the last norm returns.
    """

    taps: Sequence[int]

    def read(
        self,
        states: SequenceStates,
        slots: Column,
        start: Column,
        counts: Column,
        rows: Sequence[Array],
    ) -> None:
        """Take the target's rows of a pass, before its tokens are sampled.

        Args:
            start, counts: positions of the rows of each slot, one slot after the other.
            rows: [T, size] of each of `taps`, or of the last norm.
        """


def place_drafts(
    states: SequenceStates, proposer: Proposer, slots: Column, most: Column, room: int
) -> Column | None:
    """Write drafts behind the tokens of sequences; return how many each has, None if none.

    Args:
        most: the most drafts of each.
        room: drafts that the pass may have.
    """
    most = np.minimum(most, states.max_model_len - states.num_tokens[slots])
    np.maximum(most, 0, out=most)
    if int(most.sum()) > room:
        most = np.clip(most, 0, np.maximum(room - (np.cumsum(most) - most), 0))
    if not np.count_nonzero(most):
        return None
    counts = proposer.propose(states, slots, most)
    if not np.count_nonzero(counts):
        return None
    for entry in counts.nonzero()[0].tolist():
        states.sampling[int(slots[entry])].num_drafts = int(counts[entry])
    return counts


def sampling_rows(states: SequenceStates, slots: Column, drafts: Column) -> SamplingBatch:
    """Return a row for the token after each sequence's output, and for those after its drafts."""
    each = list(zip(slots.tolist(), drafts.tolist(), strict=True))
    return SamplingBatch(
        [states.sampling[slot] for slot, count in each for _ in range(count + 1)],
        [ahead for _, count in each for ahead in range(count + 1)],
    )


def is_draft(state: SamplingState, number: int, token: int, draft: int) -> bool:
    """Return whether the sampled token is the draft."""
    return token == draft


def synthetic(rates: Sequence[float]) -> Agrees:
    """Return an `Agrees` that accepts a share of all drafts, right or wrong, for measurements.

    Each seed has draws of its own: those of one sequence of 128 tokens may be far from the share.
    """
    return lambda state, number, token, draft: (
        uniform((state.params.seed or 0) ^ 0x5EED, state.num_output_tokens + number) < rates[number]
    )


def accept(
    states: SequenceStates,
    step: SchedulerOutput,
    entries: Column,
    drafts: Column,
    slots: Column,
    result: SampleResult,
    output: ModelOutput,
    agrees: Agrees = is_draft,
) -> None:
    """Append the tokens that count, and enter them into `output`.

    An error counts in a sequence's first row alone: the next step meets a later one first.

    Args:
        entries: of the step, those that sample.
        drafts, slots: of these entries.
        result: of `sampling_rows`.
    """
    output.drafted = np.zeros((1, len(step.request_ids)), dtype=np.int64)
    output.accepted = np.zeros_like(output.drafted)
    output.drafted[0, entries] = drafts
    tokens, first = result.token_ids.tolist(), 0
    for entry, slot, count in zip(entries.tolist(), slots.tolist(), drafts.tolist(), strict=True):
        name, state = step.request_ids[entry], states.sampling[slot]
        rows = range(first, first + count + 1)
        first = rows.stop
        if result.errors:
            if rows[0] in result.errors:
                output.errors[name] = result.errors[rows[0]]
            rows = rows[: next((i for i, row in enumerate(rows) if row in result.errors), None)]
        new, right = _counting(state, tokens[rows.start : rows.stop], count, agrees)
        if found := [result.logprobs[r] for r in rows[: len(new)] if r in result.logprobs]:
            output.logprobs[name] = found
        states.extend(slot, new)
        output.sampled_token_ids[entry, : len(new)] = new
        output.accepted[0, entry] = right


def _counting(
    state: SamplingState, tokens: list[int], num_drafts: int, agrees: Agrees
) -> tuple[list[int], int]:
    """Return the sampled tokens that count, and how many drafts were right.

    Args:
        tokens: the one after the output, and those after the drafts.
    """
    drafts = state.drafts(num_drafts).tolist()
    for number, token in enumerate(tokens):
        right = number < num_drafts and agrees(state, number, token, drafts[number])
        if not right or state.ended_by(token, number + 1):
            return tokens[: number + 1], number + right
    return tokens, len(tokens)
