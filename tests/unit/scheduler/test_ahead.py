"""Steps scheduled while others run, which yield any number of the tokens that they may.

The modelled executor's KV slots betray a block that was shared, freed or entered wrongly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from quire.core.batch import SchedulerOutput
from quire.core.config import CacheConfig, Policy, SchedulerConfig, TierConfig
from quire.core.messages import StepOutputs
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import FinishReason, Request
from quire.core.sampling_params import SamplingParams
from quire.executor.base import ForwardError, Pending
from quire.scheduler.scheduler import Scheduler
from quire.simulate.clock import VirtualClock
from tests.examples import examples
from tests.simulation.executor import ModelledExecutor, modelled_tokens

VOCAB = 13
SEEDS = examples(32)


class Pipeline:
    """A scheduler and an executor, with up to `depth` steps in flight."""

    def __init__(self, rng: Random, depth: int, num_steps: int, accepts: Accepts) -> None:
        self.rng = rng
        self.depth = depth
        self.num_steps = num_steps
        block_size, num_blocks = rng.choice([8, 16]), rng.randint(4, 30)
        self.capacity = block_size * num_blocks
        seats = rng.randint(1, 8)
        limits = SchedulerConfig(
            400,
            seats,
            rng.randint(seats, 100),
            rng.choice(POLICIES),
            preemption_mode=rng.choice(["recompute", "swap"]),
        )
        caching = rng.random() < 0.8
        window = rng.choice([None, rng.randint(1, 60)])
        slots = rng.choice([0, rng.randint(1, 20)])
        cache = CacheConfig(
            block_size,
            num_blocks,
            caching,
            sliding_window=window,
            tiers=TierConfig(slots, slots and rng.randint(0, 20)),
        )
        self.scheduler = Scheduler(limits, cache)
        self.executor = ModelledExecutor(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=VOCAB,
            clock=VirtualClock(),
            window=window,
            accepts=lambda most: accepts(rng, most),
            fails=lambda batch: rng.random() < self.failures,
        )
        self.failures = rng.choice([0.0, 0.0, 0.05])
        self.steps: deque[tuple[SchedulerOutput, Pending]] = deque()
        self.told: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.steps_at_once = 0

    def step(self) -> None:
        if self.scheduler.has_unfinished():
            batch = self.scheduler.schedule(0.0, self.num_steps)
            self.steps_at_once = max(self.steps_at_once, batch.width)
            ahead = self.steps[-1][1] if self.steps else None
            self.steps.append((batch, self.executor.submit(batch, ahead)))
        while len(self.steps) >= self.depth or (self.steps and not self.scheduler.has_unfinished()):
            batch, pending = self.steps.popleft()
            try:
                result = pending.result()
            except ForwardError as error:
                self.steps.clear()
                self.take(self.scheduler.fail(batch, str(error), 0.0))
            else:
                self.take(self.scheduler.update(batch, result, 0.0))
        self.scheduler.check_integrity()

    def take(self, outputs: StepOutputs) -> None:
        for output in outputs.each():
            assert output.request_id not in self.ends, "it went on after its end"
            self.told[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.ends[output.request_id] = output.finish_reason


POLICIES: list[Policy] = ["fcfs", "priority", "lpm"]
Accepts = Callable[[Random, int], int]
"""How many tokens an entry yields that may yield so many."""


def all_of(rng: Random, most: int) -> int:
    return most


def any_of(rng: Random, most: int) -> int:
    return rng.randint(0, most)


def some_of(rng: Random, most: int) -> int:
    """At least one, as with drafts that are verified."""
    return rng.randint(1, most)


def run(seed: int, depth: int, num_steps: int, accepts: Accepts = all_of) -> Pipeline:
    """A random load; everybody must get exactly what is theirs."""
    rng = Random(seed)
    line = Pipeline(rng, depth, num_steps, accepts)
    stem = [rng.randrange(VOCAB) for _ in range(40)]
    requests: dict[str, Request] = {}
    aborted = set()
    for i in range(rng.randint(1, 25)):
        for _ in range(rng.choice([0, 0, 1, 5])):
            line.step()
        prompt = stem[: rng.randint(0, 40)] + [rng.randrange(VOCAB)] * rng.randint(1, 40)
        params = SamplingParams(
            max_tokens=rng.randint(1, 40),
            stop_token_ids=[rng.randrange(VOCAB)] if rng.random() < 0.4 else None,
        )
        if len(prompt) + (params.max_tokens or 0) > line.capacity:
            continue
        request = Request(
            f"r{i}",
            prompt,
            params,
            arrival_time=0.0,
            max_model_len=400,
            inputs=RequestInputs(RequestOptions(priority=rng.randint(0, 2))),
        )
        requests[request.request_id] = request
        line.told[request.request_id] = []
        line.scheduler.add(request)
        if requests and rng.random() < 0.15:
            name = rng.choice(sorted(requests))
            aborted.add(name)
            line.scheduler.abort([name])
    for _ in range(3000):
        if not line.scheduler.has_unfinished() and not line.steps:
            break
        line.step()
    assert not line.scheduler.has_unfinished()
    for name, request in requests.items():
        params = request.sampling_params
        answer = modelled_tokens(
            request.token_ids[: request.num_prompt_tokens], params.max_tokens or 0, VOCAB
        )
        stops = params.stop_token_ids or []
        end = next((i + 1 for i, token in enumerate(answer) if token in stops), len(answer))
        answer, told = answer[:end], line.told[name]
        if line.ends.get(name) in (FinishReason.STOP, FinishReason.LENGTH):
            assert told == answer
        else:
            assert name in aborted or line.failures
            assert told == answer[: len(told)]
    return line


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize(
    ("depth", "num_steps", "accepts"),
    [
        (1, 1, all_of),
        (2, 1, all_of),
        (1, 4, all_of),
        (2, 4, all_of),
        (1, 1, any_of),
        (4, 1, all_of),
        (1, 4, some_of),
        (2, 4, any_of),
        (4, 6, any_of),
    ],
)
def test_everybody_gets_what_is_theirs(depth: int, num_steps: int, accepts: Accepts) -> None:
    lines = []
    for seed in range(SEEDS):
        try:
            lines.append(run(seed, depth, num_steps, accepts))
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert sum(line.scheduler.stats().num_preemptions for line in lines) > 6
    assert max(line.steps_at_once for line in lines) == num_steps
