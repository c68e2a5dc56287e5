"""An executor without a model, whose tokens betray every mistake in the bookkeeping.

Each KV slot holds a fingerprint of the whole prefix up to its position, and the next token is
a function of the last fingerprint. A block that was shared wrongly, freed too early or written
out of order therefore shows at once: the slots no longer agree with the sequence that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import (
    BlockCopies,
    ModelOutput,
    NewSequence,
    SchedulerOutput,
    StepTimes,
    token_columns,
)
from quire.core.config import StateConfig
from quire.core.cost import RooflineCost, StepCost
from quire.core.messages import TokenLogprobs
from quire.executor.base import ForwardError, Pending, StepSkippedError
from quire.simulate.clock import VirtualClock
from quire.simulate.executor import ClockedExecutor, ModelledStep, step_seconds
from tests.simulation.host_tier import MisplacedBlockError, ModelledFiles, ModelledHostTier
from tests.simulation.states import ModelledStates, WrongStateError

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


def modelled_tokens(
    prompt: Sequence[int], count: int, vocab_size: int, adapter: int = 0
) -> list[int]:
    """The `count` tokens that the modelled executor answers `prompt` with; 0 is no adapter."""
    state = _start(adapter)
    for token in prompt:
        state = fingerprint(state, token)
    answer = []
    for _ in range(count):
        token = state % vocab_size
        answer.append(token)
        state = fingerprint(state, token)
    return answer


def _start(adapter: int) -> int:
    """The fingerprint of nothing: what an adapter makes of tokens is its own."""
    return fingerprint(_START, adapter) if adapter else _START


class _Sequence:
    """One sequence as the runner holds it, with the fingerprint after each of its tokens.

    Attributes:
        num_told: tokens of the prompt, where their log-probabilities are wanted.
        num_computed: tokens whose fingerprints are in the slots; None until the first step.
    """

    def __init__(self, new: NewSequence) -> None:
        self.tokens = list(new.token_ids)
        wanted = new.sampling_params.prompt_logprobs is not None
        begins = len(self.tokens) == new.num_prompt_tokens
        self.num_told = new.num_prompt_tokens if wanted and begins else 0
        lora = new.inputs.options.lora_request
        adapter = 0 if lora is None else lora.lora_int_id
        self._start = _start(adapter)
        self.num_blocks = 0
        self.slots = np.zeros(0, dtype=np.int64)
        self._states = np.zeros(0, dtype=np.uint64)
        self._known = 0
        self.num_computed: int | None = None

    def add_block(self, position: int, block: int, block_size: int) -> None:
        """Hold `block` at this position of the table; what was skipped is held no more."""
        start = position * block_size
        if start + block_size > len(self.slots):
            self.slots = np.resize(self.slots, 2 * (start + block_size))
        self.slots[self.num_blocks * block_size : start] = _GIVEN_BACK
        self.slots[start : start + block_size] = np.arange(block_size) + block * block_size
        self.num_blocks = position + 1

    def state_before(self, position: int) -> int | None:
        """The fingerprint of the prefix that ends before `position`; None if it is empty."""
        return int(self.states(position)[-1]) if position else None

    def states(self, end: int) -> NDArray[np.uint64]:
        """Fingerprints of the prefixes that end with tokens 0 to `end` - 1."""
        if end > len(self._states):
            self._states = np.resize(self._states, 2 * end)
        state = int(self._states[self._known - 1]) if self._known else self._start
        for position in range(self._known, end):
            state = fingerprint(state, self.tokens[position])
            self._states[position] = state
        self._known = max(self._known, end)
        return self._states[:end]


def _prompt_logprobs(
    names: list[str], rows: Sequence[tuple[_Sequence, int, int]]
) -> dict[str, list[TokenLogprobs]]:
    """Of each prompt token, that it is the one at its position."""
    told = {}
    for name, (sequence, start, count) in zip(names, rows, strict=True):
        span = range(start + 1, min(start + count + 1, sequence.num_told))
        if span:
            told[name] = [TokenLogprobs([sequence.tokens[i]], [-float(i)], 1) for i in span]
    return told


class ModelledExecutor(ClockedExecutor):
    """Keeps sequences and KV slots as the runner does, and advances the clock as a model would.

    Args:
        window: tokens that the model attends to, the newest included; None is all.
        accepts: given the most tokens that an entry may yield, how many it yields. The others leave
            rubbish in the KV slots, as drafts that are rejected do.
        fails: asked before each step; True makes the step raise, after the KV slots were
            spoilt, as a kernel that crashes half-way would.
        corrupts: asked before each block is loaded from the host tier; True is damage.
        states: of recurrent layers, if the model has some.
        files: most files of blocks; None without files.
        delays: asked of each block from a file in each step; True means that it takes longer.
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
        accepts: Callable[[int], int] = lambda most: most,
        fails: Callable[[SchedulerOutput], bool] = lambda batch: False,
        corrupts: Callable[[], bool] = lambda: False,
        states: StateConfig | None = None,
        files: int | None = None,
        delays: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(num_blocks, clock, states)
        below = ModelledFiles(files or 0)
        self.lower_tiers = [] if files is None else [below]
        self._states: ModelledStates | None = None
        if states:
            self._states = ModelledStates(
                states, block_size, ModelledHostTier(corrupts, below.of_states, delays)
            )
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._cost = cost
        self._window = window
        self._accepts = accepts
        self._fails = fails
        self._host = ModelledHostTier(corrupts, below, delays)
        self._sequences: dict[str, _Sequence] = {}
        self._undone: set[str] = set()
        self._slots = np.full(num_blocks * block_size, _SPOILT, dtype=np.uint64)
        self._last: ModelledStep | None = None

    def shutdown(self) -> None:
        assert not self._sequences, "sequences were never removed"

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        """Computed now, but done only when the steps ahead are and its own time has passed."""
        last = self._last
        begin = max(self._clock(), last.end if last else 0.0)
        if ahead and last and last.error:
            self._undone.update(new.request_id for new in batch.new_sequences)
            self._last = ModelledStep(self._clock, begin, error=StepSkippedError())
            return self._last
        seconds = batch.num_passes * step_seconds(self._cost, batch) + self._copy_seconds(batch)
        self._last = ModelledStep(self._clock, begin + seconds)
        for request_id in batch.removed:
            if request_id in self._undone:  # the scheduler still names those of a failed step
                self._undone.remove(request_id)
            else:
                self._remove(request_id)
        for new in batch.new_sequences:
            if new.request_id in self._sequences:
                raise ViolationError(f"{new.request_id} was added twice")
            self._sequences[new.request_id] = _Sequence(new)
            if self._states:
                self._states.add(new)
            self._undone.discard(new.request_id)
        try:
            self._last.output = self._run(batch)
            self._last.output.times = StepTimes(model=seconds)
            self._last.output.num_passes = batch.num_passes
        except ForwardError as error:
            self._last.error = error
            self._forget_new(batch)
        return self._last

    def _forget_new(self, batch: SchedulerOutput) -> None:
        """A failed step leaves nothing behind of the sequences that it brought."""
        for new in batch.new_sequences:
            self._remove(new.request_id)
            self._undone.add(new.request_id)

    def _remove(self, request_id: str) -> None:
        del self._sequences[request_id]
        if self._states:
            self._states.remove(request_id)

    def _copy_seconds(self, batch: SchedulerOutput) -> float:
        copies = batch.block_copies
        moved = len(copies.stores) + len(copies.loads) if copies else 0
        return self._cost.copy_seconds(moved * self._block_size)

    def _copy(self, copies: BlockCopies | None) -> tuple[list[int], list[int]]:
        try:
            failed, pending = self._host.copy(copies, self._slots.reshape(-1, self._block_size))
            if self._states:
                lost, waits = self._states.copy(copies.states if copies else None)
                failed += [~slot for slot in lost]
                pending += [~slot for slot in waits]
            return failed, pending
        except MisplacedBlockError as error:
            raise ViolationError(str(error)) from error

    def _run(self, batch: SchedulerOutput) -> ModelOutput:
        failed_loads, pending_loads = self._copy(batch.block_copies)
        before = [self._sequences[name].num_blocks for name in batch.request_ids]
        if self._states:
            self._states.begin_step(batch.request_ids, batch.new_blocks)
        slots = self._slots.reshape(-1, self._block_size)
        for source, target in batch.moves:
            slots[target] = slots[source]
        for entry, position, block in batch.new_blocks[:3].T.tolist():
            sequence = self._sequences[batch.request_ids[entry]]
            held = sequence.num_blocks
            if position < held or (position > held and self._window is None):
                raise ViolationError(f"{batch.request_ids[entry]} has a hole in its block table")
            sequence.add_block(position, block, self._block_size)
        sequences = [self._sequences[name] for name in batch.request_ids]
        asked = zip(sequences, batch.num_computed_tokens.tolist(), strict=True)
        starts = [self._start(*entry) for entry in asked]
        counts = batch.num_scheduled_tokens.tolist()
        most = [1] * len(starts) if batch.max_new_tokens is None else batch.max_new_tokens.tolist()
        rows = list(zip(sequences, starts, counts, strict=True))
        if self._fails(batch):
            for (sequence, start, count), number in zip(rows, most, strict=True):
                end = start + count + max(number - 1, 0)
                self._slots[sequence.slots[start:end]] = _SPOILT
            if self._states:
                self._keep_states(batch, rows, most, None)
                self._states.undo()
            for (sequence, _, _), held in zip(rows, before, strict=True):
                sequence.num_blocks = held  # they are brought again
            raise ForwardError(failed_loads, 0.0, pending_loads) from RuntimeError(
                "the modelled step failed"
            )
        self._compute(rows)
        sampled = [self._sample(*row, number) for row, number in zip(rows, most, strict=True)]
        if self._states:
            self._keep_states(batch, rows, most, [len(tokens) for tokens in sampled])
        drafted = None
        if batch.max_new_tokens is not None and batch.num_passes == 1:
            drafted = np.maximum(batch.max_new_tokens[None] - 1, 0)
        return ModelOutput(
            token_columns(sampled),
            prompt_logprobs=_prompt_logprobs(batch.request_ids, rows),
            failed_loads=failed_loads,
            pending_loads=pending_loads,
            drafted=drafted,
            accepted=None if drafted is None else np.array([[max(len(s) - 1, 0) for s in sampled]]),
        )

    def _keep_states(
        self,
        batch: SchedulerOutput,
        rows: list[tuple[_Sequence, int, int]],
        most: list[int],
        sampled: list[int] | None,
    ) -> None:
        """Read and write the states of a step, which yields `sampled` tokens; None if it fails."""
        assert self._states is not None
        if not rows:
            return
        names = batch.request_ids
        after, drafts = list[list[int]](), list[int]()
        single = batch.num_passes == 1
        for i, (sequence, start, count) in enumerate(rows):
            right = max(sampled[i] - 1, 0) if sampled and single else 0
            drafts.append(max(most[i] - 1, 0) if single else 0)
            rejected = [_SPOILT] * (drafts[-1] - right)
            known = sequence.states(start + count + right)[start:].tolist()
            after.append((known if sampled else [_SPOILT] * len(known)) + rejected)
        starts = [start for _, start, _ in rows]
        before = [sequence.state_before(start) for sequence, start, _ in rows]
        try:
            self._states.compute(names, starts, before, after, drafts if any(drafts) else None)
            for further in range(1, 0 if single or not sampled else max(sampled, default=0)):
                going = [i for i, number in enumerate(sampled) if number > further]
                ends = [sum(rows[i][1:]) + further - 1 for i in going]
                states = [
                    rows[i][0].states(end + 1)[-2:].tolist()
                    for i, end in zip(going, ends, strict=True)
                ]
                self._states.compute(
                    [names[i] for i in going], ends, [s[0] for s in states],
                    [s[-1:] for s in states],
                )  # fmt: skip
        except WrongStateError as error:
            raise ViolationError(str(error)) from error

    def _start(self, sequence: _Sequence, asked: int) -> int:
        """Where an entry begins, of which a step says where it would if all tokens had come."""
        if sequence.num_computed is None:
            sequence.num_computed = asked
        if sequence.num_computed > asked:
            raise ViolationError("tokens are computed twice")
        return sequence.num_computed

    def _compute(self, rows: list[tuple[_Sequence, int, int]]) -> None:
        # As in a layer: everyone writes, then everyone reads.
        for sequence, start, count in rows:
            if start + count > len(sequence.tokens):
                raise ViolationError("tokens are computed that nobody has sampled")
            self._write(sequence, start, start + count)
        for sequence, start, count in rows:
            self._read(sequence, start, start + count)

    def _sample(self, sequence: _Sequence, start: int, count: int, most: int) -> list[int]:
        """The tokens that follow the computed ones; each but the last is computed, too."""
        end = start + count
        sequence.num_computed = end
        if end < len(sequence.tokens):
            return []
        number = self._accepts(most)
        if self._states:  # a token that is not sampled ends its request
            number = max(number, min(most, 1))
        for i in range(number):
            if i:
                self._write(sequence, end, end + 1)
                self._read(sequence, end, end + 1)
                end += 1
            sequence.tokens.append(int(sequence.states(end)[-1]) % self._vocab_size)
        self._slots[self._held(sequence, end, start + count + most - 1)] = _SPOILT
        sequence.num_computed = len(sequence.tokens) - 1
        return sequence.tokens[len(sequence.tokens) - number :]

    def _write(self, sequence: _Sequence, start: int, end: int) -> None:
        self._slots[self._held(sequence, start, end)] = sequence.states(end)[start:]

    def _read(self, sequence: _Sequence, start: int, end: int) -> None:
        """Everything that the tokens from `start` on attend to is there."""
        states = sequence.states(end)
        begin = 0 if self._window is None else max(0, start - self._window + 1)
        held = self._slots[self._held(sequence, begin, end)]
        if held.tobytes() != states[begin:].tobytes():
            wrong = np.flatnonzero(held != states[begin:])
            raise ViolationError(f"position {begin + wrong[0]} holds another prefix")

    def _held(self, sequence: _Sequence, begin: int, end: int) -> NDArray[np.int64]:
        """The slots of these positions."""
        slots = sequence.slots[begin:end]
        given_back = self._window is not None and slots.min(initial=0) < 0
        if given_back or end > sequence.num_blocks * self._block_size:
            raise ViolationError(f"positions {begin} to {end - 1} have no block")
        return slots
