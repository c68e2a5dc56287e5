"""Drafts from a head that reads the target's rows: `mtp`, `eagle` and `eagle3`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Column, NewSequence
from quire.core.config import EngineConfig
from quire.core.dtypes import HostArray, dtype_of
from quire.ops.array import Array
from quire.runner.state import SequenceStates
from quire.spec.batch import draft_tokens, sample_drafts
from quire.spec.head_model import HeadModel
from quire.spec.vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from quire.models.draft_head import DraftHead
    from quire.ops.interface import Ops
    from quire.ops.op_times import OpMeter

WAITING_ROWS = 16
"""Rows of a decoding sequence that wait, while nothing is drafted, to be computed at once."""


MAX_TOKENS = 512
"""Most rows that the head computes at once."""


class HeadProposer:
    """Drafts with a head on top of the target.

    At position p the head reads the target's row of token p and the embedding of token p + 1, and
    its result predicts token p + 2. `read` gets the rows of each pass. A row waits until the token
    behind it is known. Rows of rejected drafts are dropped.

    The head's keys and values are in blocks of the same numbers as the target's. A prefix hit finds
    those that an earlier sequence computed, because `end` computes all rows that still wait. The
    last one of a hit belongs to the token that followed there, which may be another one here: the
    target's row that it was made of is gone.

    Args:
        config: of the head, with the target's limits.
        most: most drafts of a sequence in one pass.
        vocabulary: of the head, if it has some of the target's tokens only.

    Attributes:
        taps: layers of the target whose inputs it reads; () if it reads the last norm's results.
    """

    def __init__(
        self,
        config: EngineConfig,
        head: DraftHead,
        ops: Ops,
        *,
        num_blocks: int,
        most: int,
        max_model_len: int,
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        draft, limits = config.model.draft_head, config.scheduler
        assert draft is not None
        self.taps: Sequence[int] = draft.taps
        self._ops = ops
        self._block_size = config.block_size
        self._max_model_len = max_model_len
        self._vocabulary = vocabulary
        self._flushes = config.enable_prefix_caching and ops.ranks == 1
        self._room = most + WAITING_ROWS
        self._max_tokens = max(
            min(limits.max_num_batched_tokens, MAX_TOKENS), self._room, limits.max_num_seqs
        )
        self._model = HeadModel(
            config, head, ops, num_blocks=num_blocks, max_tokens=self._max_tokens
        )
        self.meters: Sequence[OpMeter] = self._model.meters
        shape = (limits.max_num_seqs, self._room, self._model.row_size)
        self._rows: HostArray = np.empty(shape, dtype_of(config.dtype))
        # Of each slot: how many rows wait, and the position of the first one.
        self._count = np.zeros(limits.max_num_seqs, dtype=np.int64)
        self._first = np.zeros(limits.max_num_seqs, dtype=np.int64)

    def begin(self, states: SequenceStates, slot: int, new: NewSequence) -> None:
        self._count[slot] = 0

    def end(self, states: SequenceStates, slot: int) -> None:
        if self._flushes:
            slots = np.array([slot])
            self._compute(states, slots, self._usable(states, slots))
        self._count[slot] = 0

    def read(
        self,
        states: SequenceStates,
        slots: Column,
        start: Column,
        counts: Column,
        rows: Sequence[Array],
    ) -> None:
        # Rows from `start` on were of rejected drafts; those before a gap are of no use.
        kept = np.clip(start - self._first[slots], 0, self._count[slots])
        kept[self._first[slots] + kept != start] = 0
        self._count[slots] = kept
        self._first[slots[kept == 0]] = start[kept == 0]
        host = [self._ops.numpy(each) for each in rows]
        ends = np.cumsum(counts)
        fits = kept + counts <= self._room
        for entry in np.flatnonzero(~fits).tolist():
            span = slice(int(ends[entry] - counts[entry]), int(ends[entry]))
            new = np.concatenate([each[span] for each in host], axis=1)
            self._read_many(states, slots[entry : entry + 1], new)
        owner = np.repeat(np.arange(len(slots)), np.where(fits, counts, 0))
        offset = np.arange(len(owner)) - np.searchsorted(owner, owner)
        place, source = (slots[owner], kept[owner] + offset), (ends - counts)[owner] + offset
        for number, each in enumerate(host):
            begin = number * each.shape[1]
            self._rows[(*place, slice(begin, begin + each.shape[1]))] = each[source]
        self._count[slots[fits]] += counts[fits]

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        known, usable = states.num_tokens[slots], self._usable(states, slots)
        most = np.clip(most, 0, np.maximum(self._max_model_len - known, 0))
        ready = (usable > 0) & (self._first[slots] + usable == known - 1) & (most > 0)
        counts = np.where(ready, most, 0)
        if not ready.any():
            return counts
        slots, known, wanted = slots[ready], known[ready], counts[ready]
        found = self._compute(states, slots, usable[ready])
        outputs, hidden = (np.concatenate(parts) for parts in zip(*found, strict=True))
        for number in range(int(wanted.max())):
            drafting = np.flatnonzero(wanted > number)
            ahead = slots[drafting]
            if number:
                given = self._ops.array(hidden[drafting])
                position, each = known[drafting] + number - 2, np.ones_like(ahead)
                outputs, hidden[drafting] = self._run(states, ahead, position, each, given)
            logits = self._model.logits(self._ops.array(outputs))
            tokens = sample_drafts(self._ops, states, ahead, logits, number, self._vocabulary)
            states.token_ids[ahead, known[drafting] + number] = tokens
        return counts

    def _usable(self, states: SequenceStates, slots: Column) -> Column:
        """Return the number of waiting rows behind which the next token is known."""
        end = np.minimum(states.num_tokens[slots] - 1, self._max_model_len)
        return np.clip(end - self._first[slots], 0, self._count[slots])

    def _read_many(self, states: SequenceStates, slots: Column, new: HostArray) -> None:
        """Compute the waiting rows and new ones of one sequence, as far as tokens are known."""
        (slot,) = slots.tolist()
        rows = np.concatenate([self._rows[slot, : self._count[slot]], new])
        self._count[slot] = len(rows)
        end = int(self._usable(states, slots)[0])
        for begin in range(0, end, self._max_tokens):
            part = rows[begin : min(begin + self._max_tokens, end)]
            given = self._model.join(self._ops.array(part))
            self._run(states, slots, self._first[slots] + begin, np.array([len(part)]), given)
        left = rows[end:]
        if len(left) > self._room:  # behind max_model_len of the head
            left = left[:0]
        self._first[slot] += end
        self._count[slot] = len(left)
        self._rows[slot, : len(left)] = left

    def _compute(
        self, states: SequenceStates, slots: Column, counts: Column
    ) -> list[tuple[HostArray, HostArray]]:
        """Compute the first counts[i] waiting rows; return what `_run` does, in several parts."""
        found = []
        group = (np.cumsum(counts) - 1) // (self._max_tokens - self._room + 1)
        for number in np.unique(group[counts > 0]).tolist():
            here = (group == number) & (counts > 0)
            some, each = slots[here], counts[here]
            owner = np.repeat(np.arange(len(some)), each)
            offset = np.arange(len(owner)) - np.searchsorted(owner, owner)
            rows = self._model.join(self._ops.array(self._rows[some[owner], offset]))
            found.append(self._run(states, some, self._first[some], each, rows))
            self._first[some] += each
            self._count[some] -= each
        return found

    def _run(
        self, states: SequenceStates, slots: Column, start: Column, counts: Column, hidden: Array
    ) -> tuple[HostArray, HostArray]:
        """Compute counts[i] rows of slots[i] from position start[i] on.

        Returns:
            Of each slot's last row, what its logits are made of, and the head's own row: copies.
        """
        ids, positions, meta = draft_tokens(
            self._ops, states, slots, start, counts, self._block_size, ahead=1
        )
        last = self._ops.array(np.cumsum(counts) - 1)
        outputs, own = self._model.forward(ids, positions, hidden, meta, last)
        return self._ops.numpy(outputs).copy(), self._ops.numpy(own).copy()
