"""Which state slots a pass reads and writes: recurrent layers' counterpart of block tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import NO_STATE, Column, FirstState

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
        max_tokens: tokens of a step.
    """

    def __init__(
        self, max_num_seqs: int, max_blocks: int, block_size: int, per_request: int, max_tokens: int
    ) -> None:
        self._block_size = block_size
        self._tables = np.full((max_num_seqs, max_blocks), NO_STATE, dtype=np.int32)
        self._working = np.zeros((max_num_seqs, per_request), dtype=np.int64)
        # Slots of the states after _end tokens, after one less …; the last column is never read.
        self._recent = np.full((max_num_seqs, per_request + 1), NO_STATE, dtype=np.int64)
        self._entries = np.arange(max_num_seqs)
        self._end = np.full(max_num_seqs, UNSET, dtype=np.int64)
        self._kept = np.full(max_num_seqs, NO_STATE, dtype=np.int64)
        self._before: tuple[Column, Slots, Column] | None = None
        self._begins = True
        self._from = np.empty(max_num_seqs, dtype=np.int32)
        self._to = np.empty(max_tokens, dtype=np.int64)
        self._slots_from, self._slots_to = self._from[:0], self._to[:0]

    def add(self, row: int, state: FirstState) -> None:
        """Begin a sequence."""
        self._tables[row] = NO_STATE
        self._working[row] = state.working
        self._recent[row] = NO_STATE
        self._recent[row, 0] = state.start
        self._end[row] = UNSET

    def extend(self, rows: Column, positions: Column, slots: Column) -> None:
        """Write entries of the state tables."""
        self._tables[rows, positions] = slots

    def begin_step(self) -> None:
        """Start a step, which `undo` reverts."""
        self._begins, self._before = True, None

    def undo(self) -> None:
        """Forget the passes of the step; their sequences may be gone."""
        if self._before is not None:
            rows, recent, end = self._before
            self._recent[rows], self._end[rows] = recent, end

    def next_pass(
        self,
        rows: Column,
        starts: Column,
        loc: NDArray[np.int32],
        positions: Column,
        drafts: Column | None = None,
    ) -> tuple[NDArray[np.int32], Slots]:
        """Choose the slots of a pass over sequences in `rows`, int64 [B].

        Args:
            starts: each sequence's tokens before the pass, int64 [B].
            loc: [B + 1], where each sequence's tokens begin.
            positions: int64 [T].
            drafts: how many of each sequence's tokens are drafts, int64 [B].

        Returns:
            `StateSlots.state_from` and `state_to`, in buffers that the next pass overwrites.
        """
        source = self._find(rows, starts)
        if self._begins:
            self._begins = False
            self._before = rows, self._recent[rows], self._end[rows]
            self._kept[rows] = source
        if (len(rows), len(positions)) != (len(self._slots_from), len(self._slots_to)):
            # A plan binds its arrays again if they are not those of the last step.
            self._slots_from, self._slots_to = self._from[: len(rows)], self._to[: len(positions)]
        target, size = self._slots_to, self._block_size
        target.fill(NO_STATE)
        ends = (positions % size == size - 1).nonzero()[0]
        if len(ends):
            entry = loc.searchsorted(ends, "right") - 1
            target[ends] = self._tables[rows[entry], positions[ends] // size]
        counts, last = loc[1:] - loc[:-1], loc[1:] - 1
        most = 0 if drafts is None else int(drafts.max())
        free = self._free_slots(rows, source, most + 1)
        self._recent[rows] = NO_STATE
        for behind in range(most + 1):  # the last row, the one before it …
            each = slice(None) if drafts is None else drafts >= behind
            at = last[each] - behind
            slots = target[at]
            slots = np.where(slots == NO_STATE, free[each, behind], slots)
            target[at] = slots
            self._recent[rows[each], behind] = slots
        self._end[rows] = starts + counts
        # They may begin again where this pass did.
        self._recent[rows, np.minimum(counts, self._working.shape[1])] = source
        self._slots_from[:] = source
        return self._slots_from, target

    def _find(self, rows: Column, starts: Column) -> Slots:
        """Return the slot of each sequence's state after its first `starts` tokens.

        There is none if a prompt's last row is computed again, because it could not be sampled.
        Its request ends with an error, so its state has no meaning.
        """
        end = self._end[rows]
        last: Slots = self._recent[rows, 0]
        if (end == starts).all():
            return last
        behind = np.where(end == UNSET, 0, end - starts)
        known = (behind >= 0) & (behind < self._working.shape[1])
        return np.where(known, self._recent[rows, np.where(known, behind, 0)], NO_STATE)

    def _free_slots(self, rows: Column, source: Slots, count: int) -> Slots:
        """Return `count` working slots of each sequence that it may write, int64 [B, count]."""
        working = self._working[rows]
        taken = (working == source[:, None]) | (working == self._kept[rows][:, None])
        entries = self._entries[: len(rows), None]
        if count == 1:
            first: Slots = working[entries, taken.argmin(axis=1, keepdims=True)]
            return first
        order = taken.argsort(axis=1, kind="stable")
        found: Slots = working[entries, order[:, :count]]
        return found
