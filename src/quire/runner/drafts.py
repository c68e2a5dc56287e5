"""Drafts: guesses at the next tokens of sequences, which one pass of the model verifies.

Row j of a sequence is sampled as if its first j drafts were output: at their position, with their
penalties, their grammar mask and their random number. So each row yields the very token that a step
of its own would, if all drafts before it are right. The tokens up to the first wrong draft count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.runner.state import SequenceStates
from quire.sampling.sampler import SampleResult, SamplingBatch


class Proposer(Protocol):
    """Guesses tokens. A wrong guess costs time and changes no token."""

    def propose(self, token_ids: NDArray[np.int32], count: int) -> Sequence[int]:
        """Return up to `count` tokens that may follow `token_ids` [n]."""


def place_drafts(
    states: SequenceStates, step: SchedulerOutput, slots: Column, proposer: Proposer, room: int
) -> Column:
    """Write drafts behind the tokens of the step's sequences.

    Args:
        room: drafts that the step may have.

    Returns:
        The number of each sequence's drafts, int64 [B].
    """
    counts = np.zeros_like(slots)
    if step.max_new_tokens is None:
        return counts
    for entry, (slot, most) in enumerate(
        zip(slots.tolist(), step.max_new_tokens.tolist(), strict=True)
    ):
        wanted = min(most - 1, room)
        if wanted > 0:
            end = int(states.num_tokens[slot])
            drafts = list(proposer.propose(states.token_ids[slot, :end], wanted))[:wanted]
            states.token_ids[slot, end : end + len(drafts)] = drafts
            states.sampling[slot].num_drafts = counts[entry] = len(drafts)
            room -= len(drafts)
    return counts


def sampling_rows(states: SequenceStates, slots: Column, drafts: Column) -> SamplingBatch:
    """A row for the token behind each sequence's output, and for those behind its drafts."""
    each = list(zip(slots.tolist(), drafts.tolist(), strict=True))
    return SamplingBatch(
        [states.sampling[slot] for slot, count in each for _ in range(count + 1)],
        [ahead for _, count in each for ahead in range(count + 1)],
    )


def accept(
    states: SequenceStates,
    step: SchedulerOutput,
    entries: Column,
    slots: Column,
    drafts: Column,
    result: SampleResult,
    output: ModelOutput,
) -> None:
    """Append the tokens that count, and enter them into `output`.

    An error counts in a sequence's first row alone: the next step meets a later one first.

    Args:
        entries, slots, drafts: of the sequences that sample; as many drafts as they were given.
        result: of `sampling_rows`.
    """
    first = 0
    for entry, slot, count in zip(entries.tolist(), slots.tolist(), drafts.tolist(), strict=True):
        name, state = step.request_ids[entry], states.sampling[slot]
        guesses = state.drafts(count).tolist()
        if first in result.errors:
            output.errors[name] = result.errors[first]
        for ahead in range(count + 1):
            row = first + ahead
            if row in result.errors:
                break
            token = int(result.token_ids[row])
            output.sampled_token_ids[entry, ahead] = token
            if row in result.logprobs:
                output.logprobs.setdefault(name, []).append(result.logprobs[row])
            states.append(np.array([slot]), np.array([token]))
            if state.ended_by(token) or (ahead < count and token != guesses[ahead]):
                break
        first += count + 1
