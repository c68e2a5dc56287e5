"""An executor without a model, whose tokens betray every mistake in the bookkeeping.

Each KV slot holds a fingerprint of the whole prefix up to its position, and the next token is
a function of the last fingerprint. A block that was shared wrongly, freed too early or written
out of order therefore shows at once: the slots no longer agree with the sequence that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.batch import BlockCopies, ModelOutput, SchedulerOutput, token_columns
from quire.core.cost import RooflineCost, StepCost
from quire.executor.base import Executor, Pending
from quire.simulate.clock import VirtualClock
from quire.simulate.host_tier import MisplacedBlockError, ModelledHostTier

_MASK = 2**64 - 1
_START = 1
_SPOILT = 0
_GIVEN_BACK = -1
NOMINAL = RooflineCost(1.2e9, 114_688.0, 0.9e9, 0.3e9, 2.3e5, 28e9, 0.4e12, 0.2e12, 1e-4)
"""A model of 0.6B in bfloat16 on two cores."""


class ViolationError(BaseException):
    """The bookkeeping is wrong. No `Exception`: the core must not take it for a failed step."""


def fingerprint(previous: int, token: int) -> int:
    """Fold one token into the fingerprint of a prefix (the finalizer of SplitMix64)."""
    x = (previous ^ (token + 0x9E3779B97F4A7C15)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def modelled_tokens(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The `count` tokens that the modelled executor answers `prompt` with."""
    state = _START
    for token in prompt:
        state = fingerprint(state, token)
    answer = []
    for _ in range(count):
        token = state % vocab_size
        answer.append(token)
        state = fingerprint(state, token)
    return answer


def step_seconds(cost: StepCost, batch: SchedulerOutput) -> float:
    """What `cost` predicts for this batch."""
    computed, scheduled = batch.num_computed_tokens, batch.num_scheduled_tokens
    pairs = scheduled * computed + scheduled * (scheduled + 1) // 2
    return cost.seconds(
        batch.total_num_scheduled_tokens,
        len(batch.request_ids),
        int(computed.sum()) + batch.total_num_scheduled_tokens,
        int(pairs.sum()),
    )


@dataclass(slots=True)
class _Sequence:
    tokens: list[int]
    blocks: list[int]


@dataclass(slots=True)
class ModelledStep:
    """A step that is done at `end`."""

    clock: VirtualClock
    end: float
    output: ModelOutput | None = None
    error: Exception | None = None
    taken: bool = False

    def result(self) -> ModelOutput:
        self.clock.advance(max(0.0, self.end - self.clock()))
        self.taken = True
        if self.output is None:
            assert self.error is not None
            raise self.error
        return self.output


class ModelledExecutor(Executor):
    """Keeps sequences and KV slots as the runner does, and advances the clock as a model would.

    Args:
        window: tokens that the model attends to, the newest included; None is all.
        fails: asked before each step; True makes the step raise, after the KV slots were
            spoilt, as a kernel that crashes half-way would.
        corrupts: asked before each block is loaded from the host tier; True is damage.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        clock: VirtualClock,
        cost: StepCost = NOMINAL,
        window: int | None = None,
        fails: Callable[[SchedulerOutput], bool] = lambda batch: False,
        corrupts: Callable[[], bool] = lambda: False,
    ) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._clock = clock
        self._cost = cost
        self._window = window
        self._fails = fails
        self._host = ModelledHostTier(corrupts)
        self._sequences: dict[str, _Sequence] = {}
        self._slots = np.full(num_blocks * block_size, _SPOILT, dtype=np.uint64)
        self._last: ModelledStep | None = None

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def phases(self) -> dict[str, float]:
        return {}

    @property
    def facts(self) -> dict[str, object]:
        return {"device": "modelled"}

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        assert not self._sequences, "sequences were never removed"

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self.submit(batch).result()

    def submit(self, batch: SchedulerOutput) -> Pending:
        """Computed now, but done only when the steps ahead are and its own time has passed."""
        ahead = self._last
        begin = max(self._clock(), ahead.end if ahead else 0.0)
        seconds = step_seconds(self._cost, batch) + self._copy_seconds(batch)
        self._last = ModelledStep(self._clock, begin + seconds)
        for request_id in batch.removed:
            del self._sequences[request_id]
        for new in batch.new_sequences:
            if new.request_id in self._sequences:
                raise ViolationError(f"{new.request_id} was added twice")
            self._sequences[new.request_id] = _Sequence(list(new.token_ids), [])
        try:
            if ahead and ahead.error and not ahead.taken:
                raise RuntimeError("the step ahead failed")
            self._last.output = self._run(batch)
        except RuntimeError as error:
            self._last.error = error
        return self._last

    def _copy_seconds(self, batch: SchedulerOutput) -> float:
        copies = batch.block_copies
        moved = len(copies.stores) + len(copies.loads) if copies else 0
        return self._cost.copy_seconds(moved * self._block_size)

    def _copy(self, copies: BlockCopies) -> list[int]:
        try:
            return self._host.copy(copies, self._slots.reshape(-1, self._block_size))
        except MisplacedBlockError as error:
            raise ViolationError(str(error)) from error

    def _run(self, batch: SchedulerOutput) -> ModelOutput:
        failed_loads = self._copy(batch.block_copies) if batch.block_copies else []
        for entry, position, block in batch.new_blocks.T.tolist():
            held = self._sequences[batch.request_ids[entry]].blocks
            if position < len(held) or (position > len(held) and self._window is None):
                raise ViolationError(f"{batch.request_ids[entry]} has a hole in its block table")
            held += [_GIVEN_BACK] * (position - len(held)) + [block]
        starts, counts = batch.num_computed_tokens.tolist(), batch.num_scheduled_tokens.tolist()
        rows = list(zip(batch.request_ids, starts, counts, strict=True))
        if self._fails(batch):
            for request_id, start, count in rows:
                for position in range(start, start + count * batch.num_steps):
                    self._slots[self._slot(self._sequences[request_id], position)] = _SPOILT
            raise RuntimeError("the modelled step failed")
        sampled = self._compute(rows)
        for step in range(1, batch.num_steps):
            more = self._compute([(name, start + step, 1) for name, start, _ in rows])
            sampled = [had + new for had, new in zip(sampled, more, strict=True)]
        return ModelOutput(token_columns(sampled), failed_loads=failed_loads)

    def _compute(self, rows: list[tuple[str, int, int]]) -> list[list[int]]:
        # As in a layer: everyone writes, then everyone reads.
        for request_id, start, count in rows:
            sequence = self._sequences[request_id]
            state = self._prefix_state(sequence, start)
            for position in range(start, start + count):
                state = fingerprint(state, sequence.tokens[position])
                self._slots[self._slot(sequence, position)] = state
        sampled: list[list[int]] = []
        for request_id, start, count in rows:
            sequence = self._sequences[request_id]
            end = start + count
            state = self._prefix_state(sequence, end)
            if end < len(sequence.tokens):
                sampled.append([])
                continue
            sequence.tokens.append(state % self._vocab_size)
            sampled.append([sequence.tokens[-1]])
        return sampled

    def _prefix_state(self, sequence: _Sequence, end: int) -> int:
        """The fingerprint of the first `end` tokens, checked against the slots that are read."""
        begin = 0 if self._window is None else end - self._window + 1
        state = _START
        for position in range(end):
            state = fingerprint(state, sequence.tokens[position])
            if position >= begin and self._slots[self._slot(sequence, position)] != state:
                raise ViolationError(f"position {position} holds another prefix")
        return state

    def _slot(self, sequence: _Sequence, position: int) -> int:
        block = sequence.blocks[position // self._block_size]
        if block == _GIVEN_BACK:
            raise ViolationError(f"position {position} has no block")
        return block * self._block_size + position % self._block_size
