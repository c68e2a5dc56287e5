"""States of modelled recurrent layers: a slot holds the fingerprint of the prefix that made it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

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
        rows = np.array([self._rows[name] for name in names])
        counts = [len(each) for each in after]
        loc = np.array([0, *accumulate(counts)], dtype=np.int32)
        source, target = self._tables.next_pass(
            rows,
            np.array(starts),
            loc,
            None if drafts is None else np.array(drafts),
        )
        values = chain.from_iterable(after)
        pairs = zip(target.tolist(), values, strict=True)
        written = [(slot, value) for slot, value in pairs if slot != NO_STATE]
        new = dict(written)
        if len(new) != len(written):
            raise WrongStateError("two rows write one slot")
        begins = source.tolist()
        if not new.keys().isdisjoint(begins):
            raise WrongStateError("a pass writes a slot that it reads")
        held = self._slots[source].tolist()
        for name, slot, found, right in zip(names, begins, held, states, strict=True):
            if slot == NO_STATE:
                if right is not None:
                    raise WrongStateError(f"{name} begins without a state")
            elif found != right:
                raise WrongStateError(f"{name} begins with another state")
        self._slots[[*new]] = np.array([*new.values()], dtype=np.uint64)

    def undo(self) -> None:
        self._tables.undo()
