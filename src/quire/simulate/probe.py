"""Measure a model's rates on this machine with handmade steps.

There are four kinds of steps. Each depends on one part of `core.cost.RooflineCost`: decoding one
sequence (reading weights), the first chunk of a prompt (products), the last chunk of a long prompt
(attention's arithmetic), and decoding many sequences (reading keys and values).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from quire.core import batch
from quire.core.config import EngineConfig
from quire.core.cost import RooflineCost
from quire.core.sampling_params import SamplingParams
from quire.executor.uniproc import UniprocExecutor
from quire.system.records import dataclass

SHORT, LONG, CHUNK, STREAMS = 64, 1024, 128, 16
"""Tokens of a short and of a long context, of a chunk, and sequences that decode together."""
ROUNDS, REPEATS = 5, 3
"""Every round times all kinds of steps, so that a temporary slowdown affects all of them. The
result is the median over rounds of the median over repetitions."""

Entry = tuple[int, int, int]
"""Of a sequence in a step: which, tokens computed before, tokens to compute."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Rates of a model on this machine, in bytes/s and operations/s.

    Attributes:
        weights: bytes/s at which a decode step reads weights.
        keys: bytes/s at which attention reads keys and values.
        products, attention: operations of linear layers and of attention in a prompt.
        spread: largest difference between rounds, relative to their median.
    """

    weights: float
    keys: float
    products: float
    attention: float
    spread: float = 0.0


def probe(config: EngineConfig, unit: RooflineCost) -> Reached:
    """Load the model and time its steps; takes some seconds on an idle machine.

    Args:
        unit: the model's cost with every rate at 1, which is its bytes and operations.
    """
    long = min(LONG, config.scheduler.max_model_len - 1)
    chunk = min(CHUNK, long // 2)
    steps: list[list[Entry]] = [
        [(0, SHORT, 1)],
        [(0, 0, chunk)],
        [(0, long - chunk, chunk)],
        [(index, long - 1, 1) for index in range(STREAMS)],
    ]
    with StepBench(config, long, STREAMS, chunk) as bench:
        bench.fill(long)
        times = [[bench.median(step) for step in steps] for _ in range(ROUNDS)]
    kinds = list(zip(*times, strict=True))
    found = fit(unit, steps, [statistics.median(rounds) for rounds in kinds])
    return replace(found, spread=max(map(spread, kinds)))


def spread(values: Sequence[float]) -> float:
    """Return the difference between the largest and the smallest, relative to their median."""
    return (max(values) - min(values)) / statistics.median(values)


def fit(unit: RooflineCost, steps: Sequence[Sequence[Entry]], seconds: Sequence[float]) -> Reached:
    """Return the rates with which `RooflineCost` predicts these seconds for `probe`'s steps."""
    reached = Reached(*[1e18] * 4)
    for _ in range(50):  # converges quickly, because each step depends mostly on one rate
        for step, name, spent in zip(
            steps, ("weights", "products", "attention", "keys"), seconds, strict=True
        ):
            low, high = 1e6, 1e18
            while high / low > 1.0001:  # time falls as the rate grows
                middle = (low * high) ** 0.5
                slow = predict(unit, replace(reached, **{name: middle}), step) > spent
                low, high = (middle, high) if slow else (low, middle)
            reached = replace(reached, **{name: high})
    return reached


def predict(unit: RooflineCost, reached: Reached, step: Sequence[Entry]) -> float:
    """Return the seconds of a step at these rates."""
    cost = replace(
        unit,
        bytes_per_second=reached.weights,
        kv_bytes_per_second=reached.keys,
        flops_per_second=reached.products,
        attention_flops_per_second=reached.attention,
    )
    tokens = sum(count for _, _, count in step)
    context = sum(start + count for _, start, count in step)
    pairs = sum(count * start + count * (count + 1) // 2 for _, start, count in step)
    return cost.seconds(tokens, len(step), context, pairs)


class StepBench:
    """A worker that computes handmade steps of up to `streams` sequences of `length` tokens and of
    chunks of `chunk` tokens."""

    def __init__(self, config: EngineConfig, length: int, streams: int, chunk: int) -> None:
        self._blocks = -(-(length + 1) // config.block_size)
        limits = replace(
            config.scheduler, max_num_seqs=streams, max_num_batched_tokens=max(chunk, streams)
        )
        self._length, self._streams, self._chunk = length, streams, chunk
        self._vocab_size = config.model.vocab_size
        self._at: dict[int, tuple[int, int]] = {}
        """Of each sequence: its computed tokens, and the length of its prompt."""
        self._executor = UniprocExecutor(
            replace(config, scheduler=limits, num_blocks=streams * self._blocks)
        )

    def __enter__(self) -> StepBench:
        self._executor.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()

    def fill(self, length: int) -> None:
        """Compute `length` tokens of each sequence, so that its keys and values are in memory."""
        for index in range(self._streams):
            for start in range(0, length, self._chunk):
                self.seconds([(index, start, min(self._chunk, length - start))])

    def median(self, step: Sequence[Entry]) -> float:
        return statistics.median(self.seconds(step) for _ in range(REPEATS))

    def seconds(self, step: Sequence[Entry]) -> float:
        """Return the worker's seconds for a step, in which each sequence samples a token."""
        ends = {index: start + count for index, start, count in step}
        back = [(i, start - 1, 1) for i, start, _ in step if start]
        if back:  # not timed: recreate the sequences, so that their prompts end with the step
            self._executor.execute(self._batch(back, ends))
        times = self._executor.execute(self._batch(step, ends)).times
        return times.prepare + times.model + times.sample

    def _batch(self, step: Sequence[Entry], ends: Mapping[int, int]) -> batch.SchedulerOutput:
        """Return a step of sequences whose prompts have these lengths."""
        new, removed, blocks, states = [], [], [], self._executor.states
        params = SamplingParams(temperature=0.0, max_tokens=1)
        for row, (index, start, count) in enumerate(step):
            before = self._at.get(index)
            self._at[index] = start + count, ends[index]
            if before == (start, ends[index]):
                continue
            if before is not None:
                removed.append(str(index))
            # Other tokens choose other experts.
            random = np.random.default_rng(index)
            prompt = random.integers(self._vocab_size, size=self._length + 1)[
                : ends[index]
            ].tolist()
            state = None
            if states is not None:
                first = index * states.per_request
                state = batch.FirstState(
                    batch.NO_STATE, [*range(first, first + states.per_request)]
                )
            new.append(batch.NewSequence(str(index), prompt, len(prompt), params, state=state))
            first = index * self._blocks
            blocks.append((row, 0, list(range(first, first + self._blocks))))
        counts = np.array([count for _, _, count in step])
        new_blocks = batch.block_columns(blocks)
        return batch.SchedulerOutput(
            step=0,
            request_ids=[str(index) for index, _, _ in step],
            num_scheduled_tokens=counts,
            num_computed_tokens=np.array([start for _, start, _ in step]),
            new_blocks=new_blocks if states is None else batch.without_snapshots(new_blocks),
            new_sequences=new,
            removed=removed,
            total_num_scheduled_tokens=int(counts.sum()),
        )
