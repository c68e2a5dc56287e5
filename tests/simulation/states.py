"""States of modelled recurrent layers: a slot holds the fingerprint of the prefix that made it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.batch import NO_STATE, BlockCopies, Column, NewSequence
from quire.core.config import StateConfig
from quire.runner.recurrent import StateSlotTables
from tests.simulation.host_tier import ModelledHostTier

SPOILT = 0
MAX_SEQS = 64
MAX_BLOCKS = 2048
MAX_TOKENS = 1 << 14


class WrongStateError(Exception):
    """A sequence begins with another's state, or two rows need the same slot."""


class ModelledStates:
    """The runner's own choice of slots, on slots that betray every mistake."""

    def __init__(self, config: StateConfig, block_size: int, host: ModelledHostTier) -> None:
        self._tables = StateSlotTables(
            MAX_SEQS, MAX_BLOCKS, block_size, config.per_request, MAX_TOKENS
        )
        self._slots = np.full(config.num_slots, SPOILT, dtype=np.uint64)
        self._host = host
        self._rows: dict[str, int] = {}
        self._free = list(range(MAX_SEQS))

    def copy(self, copies: BlockCopies | None) -> tuple[list[int], list[int]]:
        """Do the copies of states; return the slots whose load failed, or goes on."""
        return self._host.copy(copies, self._slots.reshape(-1, 1))

    def add(self, new: NewSequence) -> None:
        assert new.state is not None
        row = self._rows[new.request_id] = self._free.pop()
        self._tables.add(row, new.state)

    def remove(self, name: str) -> None:
        self._free.append(self._rows.pop(name))

    def begin_step(self, names: Sequence[str], new_blocks: Column) -> None:
        if new_blocks.size:
            entries, positions, _, slots = new_blocks
            rows = np.array([self._rows[name] for name in names], dtype=np.int64)
            self._tables.extend(rows[entries], positions, slots)
        self._tables.begin_step()

    def compute(
        self,
        names: Sequence[str],
        starts: Sequence[int],
        states: Sequence[int | None],
        after: Sequence[Sequence[int]],
        drafts: Sequence[int] | None = None,
    ) -> None:
        """Do one pass.

        Args:
            starts: each sequence's tokens before it.
            states: the right state of each sequence then; None if it has no tokens.
            after: the right state after each row, `SPOILT` after wrong drafts.
        """
        rows = np.array([self._rows[name] for name in names], dtype=np.int64)
        counts = [len(each) for each in after]
        loc = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate(
            [np.arange(n) + s for n, s in zip(counts, starts, strict=True)]
        ).astype(np.int64)
        source, target = self._tables.next_pass(
            rows,
            np.array(starts, dtype=np.int64),
            loc,
            positions,
            None if drafts is None else np.array(drafts, dtype=np.int64),
        )
        written = target[target != NO_STATE]
        if len(set(written.tolist())) != len(written):
            raise WrongStateError("two rows write one slot")
        if not set(written.tolist()).isdisjoint(source.tolist()):
            raise WrongStateError("a pass writes a slot that it reads")
        for name, slot, right in zip(names, source.tolist(), states, strict=True):
            if slot == NO_STATE:
                if right is not None:
                    raise WrongStateError(f"{name} begins without a state")
            elif int(self._slots[slot]) != right:
                raise WrongStateError(f"{name} begins with another state")
        values = np.array([value for each in after for value in each], dtype=np.uint64)
        self._slots[written] = values[target != NO_STATE]

    def undo(self) -> None:
        self._tables.undo()
