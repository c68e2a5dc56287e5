"""Drafts that the last pipeline stage makes behind each step, for all stages' next one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Column, ModelOutput, NewSequence, SchedulerOutput
from quire.runner.drafts import Proposer

if TYPE_CHECKING:
    from quire.ops.op_times import OpMeter
    from quire.runner.state import SequenceStates
    from quire.system.stopwatch import Stopwatch


class Foreseen:
    """Proposes drafts that came with the tokens before them.

    The last stage has the drafter, because it samples and has the rows that heads read. The first
    stage needs the drafts before it begins. So the last one drafts behind a step, and the drafts
    travel with the step's tokens. Drafts behind other tokens than these are never proposed.

    Args:
        most: most drafts of a sequence.
        drafter: in the last stage.
    """

    def __init__(self, max_num_seqs: int, most: int, drafter: Proposer | None) -> None:
        self.meters: Sequence[OpMeter] = () if drafter is None else drafter.meters
        self._drafter = drafter
        self._most = most
        # Of each slot: its drafts, how many they are, and the number of tokens before them.
        self._drafts = np.zeros((max_num_seqs, most), dtype=np.int64)
        self._count = np.zeros(max_num_seqs, dtype=np.int64)
        self._known = np.zeros(max_num_seqs, dtype=np.int64)

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        self._count[slot] = 0
        if self._drafter is not None:
            self._drafter.begin(states, slot, new)

    def end(self, states: SequenceStates, slot: int) -> None:
        if self._drafter is not None:
            self._drafter.end(states, slot)

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        known = states.num_tokens[slots]
        counts = np.where(self._known[slots] == known, np.minimum(self._count[slots], most), 0)
        for number in range(int(counts.max(initial=0))):
            there = counts > number
            states.token_ids[slots[there], known[there] + number] = self._drafts[
                slots[there], number
            ]
        return counts

    def note(self, states: SequenceStates, slots: Column, drafts: Column) -> None:
        """Keep drafts [S, k], padded with -1, for the next step of each of these sequences."""
        width = drafts.shape[1]
        self._drafts[slots, :width] = drafts
        self._count[slots] = (drafts >= 0).sum(axis=1)
        self._known[slots] = states.num_tokens[slots]

    def draft(
        self,
        states: SequenceStates,
        step: SchedulerOutput,
        slots: Column,
        output: ModelOutput,
        watch: Stopwatch,
    ) -> None:
        """Draft behind the tokens of `output`, keep the drafts, and enter them into it.

        A sequence gets as many as it might have had in this step, and all behind its prompt.
        """
        if self._drafter is None:
            return
        begin = time.perf_counter()
        most = np.where(step.num_scheduled_tokens > 1, self._most, 0)
        if step.max_new_tokens is not None:
            most = np.maximum(most, np.minimum(step.max_new_tokens - 1, self._most))
        most = np.minimum(most, states.max_model_len - states.num_tokens[slots])
        goes_on = np.array(
            [
                count > 0 and not states.sampling[slot].ended_by(tokens[count - 1])
                for slot, tokens, count in zip(
                    slots.tolist(),
                    output.sampled_token_ids.tolist(),
                    output.num_sampled().tolist(),
                    strict=True,
                )
            ],
            dtype=bool,
        )
        most = np.where(goes_on, np.maximum(most, 0), 0)
        if most.any():
            counts = self._drafter.propose(states, slots, most)
            places = states.num_tokens[slots, None] + np.arange(int(most.max()))
            places = np.minimum(places, states.max_model_len - 1)
            drafts = states.token_ids[slots[:, None], places].astype(np.int64)
            output.drafts = np.where(np.arange(drafts.shape[1]) < counts[:, None], drafts, -1)
            self.note(states, slots, output.drafts)
        output.draft_seconds += time.perf_counter() - begin
        watch.lap("prepare")
