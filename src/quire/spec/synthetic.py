"""Drafts for measurements with synthetic acceptance."""

from __future__ import annotations

from quire.core.batch import Column, NewSequence
from quire.runner.drafts import Proposer
from quire.runner.state import SequenceStates


class FullDrafts:
    """Fills up another proposer's drafts, so that each pass verifies as many as it may."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.meters = proposer.meters

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        self._proposer.begin(states, slot, new)

    def end(self, states: SequenceStates, slot: int) -> None:
        self._proposer.end(states, slot)

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        counts = self._proposer.propose(states, slots, most)
        rows = zip(slots.tolist(), counts.tolist(), most.tolist(), strict=True)
        for slot, count, wanted in rows:
            end = int(states.num_tokens[slot])
            states.token_ids[slot, end + count : end + wanted] = states.token_ids[slot, 0]
        return most
