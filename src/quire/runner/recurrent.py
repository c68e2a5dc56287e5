"""Which state slots a pass reads and writes: recurrent layers' counterpart of block tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import NO_STATE, Column, FirstState
from quire.ops.state_slots import StateTables

Slots = NDArray[np.int64]
UNSET = -1
"""Value of `_end` until a sequence's first pass."""


class StateSlotTables:
    """The state slots of all sequences, one row each, as `SequenceStates` numbers them.

    A pass reads a sequence's state before its first row. It stores states after its last row, and
    with drafts after each row that may be the last right one, in working slots of the sequence.
    The state after a block goes to the slot in the state table, if there is one.

    A pass never writes a slot that it reads, nor the one with which the step began. So a pass can
    take back rejected drafts, and a step that failed can be computed again.

    Args:
        per_request: working slots of a sequence.
    """

    def __init__(
        self, max_num_seqs: int, max_blocks: int, block_size: int, per_request: int, max_tokens: int
    ) -> None:
        self._tables = np.full((max_num_seqs, max_blocks), NO_STATE, dtype=np.int32)
        self._working = np.zeros((max_num_seqs, per_request), dtype=np.int64)
        self._recent = np.full((max_num_seqs, per_request + 1), NO_STATE, dtype=np.int64)
        self._end = np.full(max_num_seqs, UNSET, dtype=np.int64)
        self._from = np.empty(max_num_seqs, dtype=np.int32)
        self._to = np.empty(max_tokens, dtype=np.int64)
        self._slots_from, self._slots_to = self._from[:0], self._to[:0]
        self._native = StateTables(
            self._tables, self._working, self._recent, self._end, self._from, self._to, block_size
        )

    def add(self, row: int, state: FirstState) -> None:
        """Begin a sequence."""
        self._tables[row] = NO_STATE
        self._working[row] = state.working
        self._recent[row] = NO_STATE
        self._recent[row, 0] = state.start
        self._end[row] = UNSET

    def extend(self, rows: Column, positions: Column, slots: Column) -> None:
        self._tables[rows, positions] = slots

    def begin_step(self) -> None:
        """Start a step, which `undo` reverts."""
        self._native.begin_step()

    def undo(self) -> None:
        """Forget the passes of the step; their sequences may be gone."""
        self._native.undo()

    def next_pass(
        self, rows: Column, starts: Column, loc: NDArray[np.int32], drafts: Column | None = None
    ) -> tuple[NDArray[np.int32], Slots]:
        """Choose the slots of a pass over sequences in `rows`, int64 [B].

        Args:
            starts: each sequence's tokens before the pass, int64 [B].
            loc: [B + 1], where each sequence's tokens begin.
            drafts: how many of each sequence's tokens are drafts, int64 [B].

        Returns:
            `StateSlots.state_from` and `state_to`, in buffers that the next pass overwrites.
        """
        sizes = len(rows), int(loc[-1])
        if sizes != (len(self._slots_from), len(self._slots_to)):
            # A plan binds its arrays again if they are not those of the last step.
            self._slots_from, self._slots_to = self._from[: sizes[0]], self._to[: sizes[1]]
        self._native.next(rows, starts, loc, drafts)
        return self._slots_from, self._slots_to
