"""The passes of the model in one step, each with its drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import compress, count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column, ModelOutput, SchedulerOutput, block_columns
from quire.runner.drafts import Proposer, place_drafts
from quire.runner.inputs import StepInputBuilder
from quire.runner.state import SequenceStates

if TYPE_CHECKING:
    from quire.ops.op_times import OpMeter

Compute = Callable[[SchedulerOutput, Column, Column | None], ModelOutput]
"""Runs the model once: a step, its slots, and the number of each sequence's drafts (or None)."""


class Passes:
    """Computes steps that may yield several tokens of a sequence.

    Each pass yields one token of each sequence, and one for each draft that was right. Without a
    proposer there are no drafts.

    Attributes:
        draft_meters: of the ops that draft.
    """

    def __init__(
        self, states: SequenceStates, inputs: StepInputBuilder, proposer: Proposer | None
    ) -> None:
        self._states = states
        self._inputs = inputs
        self._proposer = proposer
        self.draft_meters: Sequence[OpMeter] = () if proposer is None else proposer.meters
        self._versions = count(-1, -1)  # of parts of a step, below all of the scheduler's

    def run(
        self, step: SchedulerOutput, slots: Column, most: Column, compute: Compute
    ) -> ModelOutput:
        """Compute up to most[i] tokens of entry i.

        An entry that ends or fails yields no more. What fails after the first pass fails again as
        the first token of the next step, which reports it.

        Args:
            compute: runs the model once.
        """
        if step.num_passes == 1:
            return self._verify(step, slots, most - 1, compute)
        depth = -(-most // step.num_passes) - 1
        output = self._verify(step, slots, np.minimum(depth, most - 1), compute)
        columns = np.full((len(slots), step.width), -1, dtype=np.int64)
        columns[:, : output.sampled_token_ids.shape[1]] = output.sampled_token_ids
        output.sampled_token_ids = columns
        entries, names, version = np.arange(len(slots)), step.request_ids, step.batch_version
        before = np.zeros_like(slots)
        for _ in range(1, step.num_passes):
            done = (columns[entries] >= 0).sum(axis=1)
            going = (before < done) & (done < most[entries])
            going &= self._unfinished(slots, columns[entries, done - 1])
            if not going.all():
                entries, slots, done = entries[going], slots[going], done[going]
                names = list(compress(names, going))
                version = next(self._versions)
            if not names:
                break
            following = self._following(step, slots, names, version)
            before, left = done, most[entries] - done
            result = self._verify(following, slots, np.minimum(depth[entries], left - 1), compute)
            output.num_passes += 1
            output.draft_seconds += result.draft_seconds
            for row, entry in enumerate(entries.tolist()):
                tokens = result.sampled_token_ids[row]
                tokens = tokens[tokens >= 0]
                columns[entry, done[row] : done[row] + len(tokens)] = tokens
            for name, logprobs in result.logprobs.items():
                output.logprobs[name] += logprobs
            _add_counts(output, result, entries, len(step.request_ids))
        return output

    def _verify(
        self, step: SchedulerOutput, slots: Column, most: Column, compute: Compute
    ) -> ModelOutput:
        """Run one pass, with up to most[i] drafts of entry i."""
        drafts, begin = None, time.perf_counter()
        if self._proposer is not None:
            room = self._inputs.room(step)
            drafts = place_drafts(self._states, self._proposer, slots, most, room)
        seconds = time.perf_counter() - begin
        try:
            output = compute(step, slots, drafts)
            output.draft_seconds = seconds
            return output
        finally:
            if drafts is not None:
                for slot in slots.tolist():
                    self._states.sampling[slot].num_drafts = 0

    def _unfinished(self, slots: Column, last: Column) -> NDArray[np.bool_]:
        """Return which sequences do not end with these tokens, their last ones."""
        sampling = self._states.sampling
        rows = zip(slots.tolist(), last.tolist(), strict=True)
        return np.array([not sampling[slot].ended_by(token) for slot, token in rows], dtype=bool)

    def _following(
        self, step: SchedulerOutput, slots: Column, names: list[str], version: int
    ) -> SchedulerOutput:
        """Return a further pass over some of a step's sequences."""
        return SchedulerOutput(
            step=step.step,
            request_ids=names,
            num_scheduled_tokens=np.ones_like(slots),
            num_computed_tokens=self._states.num_tokens[slots] - 1,
            new_blocks=block_columns([]),
            new_sequences=[],
            removed=[],
            total_num_scheduled_tokens=len(names),
            batch_version=version,
        )


def _add_counts(output: ModelOutput, result: ModelOutput, entries: Column, size: int) -> None:
    """Append the drafts of a further pass, over `entries`, to those of the step."""
    if result.drafted is None or result.accepted is None:
        return
    for name, row in (("drafted", result.drafted), ("accepted", result.accepted)):
        whole = np.zeros((1, size), dtype=np.int64)
        whole[:, entries] = row
        known = getattr(output, name)
        setattr(output, name, whole if known is None else np.concatenate([known, whole]))
