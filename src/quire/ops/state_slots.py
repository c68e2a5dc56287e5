"""The choice of state slots for a pass of recurrent layers, in native code."""

from __future__ import annotations

from quire import _native
from quire.core.dtypes import HostArray
from quire.ops.array import address


class StateTables:
    """Arrays of sequences, one row each, and what a pass does to them (see `runner.recurrent`).

    Args:
        slots: int32 [rows, blocks], the slot of the state after each block, or -1.
        working: int64 [rows, width], slots of the sequence's own.
        recent: int64 [rows, width + 1], slots of the states after `end` tokens, after one less …;
            the last column is never read.
        end: int64 [rows], tokens behind the last pass; -1 before the first.
        source: int32 [rows], gets the slots that the sequences of a pass begin with.
        target: int64 [tokens], gets the slot of the state after each token of a pass, or -1.
    """

    def __init__(
        self,
        slots: HostArray,
        working: HostArray,
        recent: HostArray,
        end: HostArray,
        source: HostArray,
        target: HostArray,
        block_size: int,
    ) -> None:
        self._arrays = (slots, working, recent, end, source, target)
        rows, blocks = slots.shape
        self._native = _native.StateTables(
            address(slots), address(working), address(recent), address(end), address(source),
            address(target), rows, blocks, working.shape[1], block_size,
        )  # fmt: skip
        self.begin_step = self._native.begin_step
        """Start a step, which `undo` reverts."""
        self.undo = self._native.undo
        """Forget the passes of the step; their sequences may be gone."""

    def next(
        self, rows: HostArray, starts: HostArray, first: HostArray, drafts: HostArray | None
    ) -> None:
        """Choose the slots of a pass: write `source` [B] and `target` [T].

        Args:
            rows: int64 [B].
            starts: int64 [B], each sequence's tokens before the pass.
            first: int32 [B + 1], where the tokens of each begin.
            drafts: int64 [B], how many of each sequence's tokens are drafts.
        """
        given = 0 if drafts is None else address(drafts)
        self._native.next(address(rows), address(starts), address(first), given, len(rows))
