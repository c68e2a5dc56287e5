"""Steps whose tokens another pipeline stage samples: this one learns them later."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from quire.core.batch import Column, SchedulerOutput
from quire.core.errors import EngineDeadError
from quire.runner.drafts import Proposer
from quire.runner.foreseen import Foreseen
from quire.runner.state import SequenceStates


class _Record(NamedTuple):
    """A computed step.

    Attributes:
        samples: entries that sample a token.
        computed: each sequence's computed tokens before it.
    """

    names: list[str]
    new: list[str]
    samples: Column
    computed: Column


class Unsettled:
    """Completes the state of sequences once their tokens are known, or takes steps back.

    Attributes:
        foreseen: drafts that come with the tokens; None if none do.
    """

    def __init__(self, states: SequenceStates, proposer: Proposer | None = None) -> None:
        self.foreseen = proposer if isinstance(proposer, Foreseen) else None
        self._states = states
        self._records: deque[_Record] = deque()

    def note(self, step: SchedulerOutput, samples: Column, computed: Column) -> None:
        """Remember a step that was computed here."""
        new = [new.request_id for new in step.new_sequences]
        self._records.append(_Record(step.request_ids, new, samples, computed))

    def settle(self, tokens: Column, drafts: Column | None = None) -> None:
        """Append the tokens of the oldest step, [B, k], to sequences that are still there.

        Args:
            tokens: of each sequence in order, then -1. Drafts, whose keys and values this stage has
                computed, are among them if they were accepted.
            drafts: of each sequence for its next step, [B, k].

        The last stage, which sampled them, has no such step.
        """
        if not self._records:
            return
        record, states = self._records.popleft(), self._states
        names = [record.names[entry] for entry in record.samples.tolist()]
        slots = np.array([states.slot(name) for name in names], dtype=np.int64)
        there = slots >= 0
        slots, samples = slots[there], record.samples[there]
        for came in tokens[samples].T:
            states.append(slots[came >= 0], came[came >= 0])
        # Also of a row that should have sampled and did not: it computes its last token again.
        states.num_computed[slots] = states.num_tokens[slots] - 1
        if drafts is not None and self.foreseen is not None:
            self.foreseen.note(states, slots, drafts[samples])

    def forget(self) -> None:
        """Take back all steps that are not settled, as if none of them had begun.

        Raises:
            EngineDeadError: the model has recurrent layers, whose states they have overwritten.
        """
        states = self._states
        if self._records and states.recurrent is not None:
            raise EngineDeadError("A step failed, and recurrent states of earlier stages are gone.")
        while self._records:
            record = self._records.pop()
            states.remove(record.new)
            for name, computed in zip(record.names, record.computed.tolist(), strict=True):
                if (slot := states.slot(name)) >= 0:
                    states.num_computed[slot] = computed
        states.forget_batch()
