"""Deterministic simulation: the real core, random worlds, every invariant after every step.

A failure names its seed; `run_world(seed)` replays it.
"""

from __future__ import annotations

from random import Random

import pytest

from quire.core.batch import SchedulerOutput
from quire.core.config import EngineConfig, ModelConfig, SchedulerConfig, TierConfig
from quire.core.messages import AddRequest
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.simulate.clock import VirtualClock
from quire.simulate.driver import Event, Transcript, drive
from quire.simulate.executor import ModelledExecutor, ViolationError, modelled_tokens

VOCAB = 97
SEEDS = 300
FAILED_ONCE: list[int] = [3]
"""Seeds that found a bug; they run for ever."""


class World:
    """A random engine, a random load, and what must come of it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        rng = self.rng
        self.block_size = rng.choice([8, 16, 32])
        self.num_blocks = rng.randint(4, 40 if rng.random() < 0.3 else 12)
        self.capacity = self.num_blocks * self.block_size
        self.max_num_seqs = rng.randint(1, 12)
        self.budget = rng.randint(self.max_num_seqs, 200)
        self.policy = rng.choice(["fcfs", "priority"])
        self.caching = rng.random() < 0.7
        self.failure_rate = rng.choice([0.0, 0.0, 0.02, 0.1])
        pipeline = Random(f"pipeline {seed}")
        self.async_scheduling = pipeline.random() < 0.5
        self.num_scheduler_steps = pipeline.choice([1, 1, 2, 5])
        self.host = Random(f"host {seed}")
        self.corruption_rate = self.host.choice([0.0, 0.0, 0.1])
        self.clock = VirtualClock()
        self.in_step: list[SchedulerOutput] = []
        self.requests = self._requests()
        self.aborts = {
            r.request_id: r.arrival_time + rng.expovariate(2.0)
            for r in self.requests
            if rng.random() < 0.15
        }
        self.core = EngineCore(self._config(), self._executor(), self.clock)

    def _requests(self) -> list[AddRequest]:
        rng = self.rng
        stems = [self._tokens(rng.randint(0, 6) * 16) for _ in range(3)]
        time, requests = 0.0, []
        for i in range(rng.randint(1, 30)):
            time += rng.expovariate(rng.choice([0.5, 5.0, 500.0]))
            if requests and rng.random() < 0.3:  # asked again, word for word
                prompt = rng.choice(requests).prompt_token_ids
            else:
                tail = rng.choice([rng.randint(1, 60), self.block_size, 2 * self.block_size])
                prompt = rng.choice(stems) + self._tokens(tail)
            params = SamplingParams(
                temperature=0.0,
                max_tokens=rng.randint(1, 60),
                min_tokens=0,
                stop_token_ids=[rng.randrange(VOCAB)] if rng.random() < 0.3 else None,
                ignore_eos=rng.random() < 0.5,
            )
            salt = rng.choice([None, None, "salt"])
            priority = rng.randint(0, 3)
            requests.append(AddRequest(f"r{i}", prompt, params, time, priority, salt, (0, 1)))
        return requests

    def _tiers(self) -> TierConfig:
        draw = self.host
        swap, offload = (draw.choice([0, draw.randint(1, 30)]) for _ in range(2))
        return TierConfig(swap, offload, draw.choice([0, draw.randint(1, 20)]) if offload else 0)

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def _config(self) -> EngineConfig:
        limits = SchedulerConfig(
            10_000,
            self.max_num_seqs,
            self.budget,
            self.policy,
            self.host.choice(["auto", "recompute", "swap"]),
        )
        return EngineConfig(
            model_path="modelled",
            model=ModelConfig("llama", VOCAB, 1, 1, 1, 1, 1, 1, 10_000),
            load_format="dummy",
            dtype="float32",
            quantization=None,
            kv_cache_dtype="float32",
            seed=0,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_cache_memory_bytes=None,
            memory_budget_bytes=0,
            enable_prefix_caching=self.caching,
            scheduler=limits,
            ops="reference",
            num_threads=1,
            tiers=self._tiers(),
            async_scheduling=self.async_scheduling,
            num_scheduler_steps=self.num_scheduler_steps,
        )

    def _executor(self) -> ModelledExecutor:
        return ModelledExecutor(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=VOCAB,
            clock=self.clock,
            fails=self._fails,
            corrupts=lambda: self.host.random() < self.corruption_rate,
        )

    def _fails(self, batch: SchedulerOutput) -> bool:
        total = int(batch.num_scheduled_tokens.sum())
        assert total <= self.budget, "budget exceeded"
        assert total * batch.num_steps == batch.total_num_scheduled_tokens
        assert batch.num_scheduled_tokens.min(initial=1) >= 1, "a request was scheduled for nothing"
        assert len(set(batch.request_ids)) == len(batch.request_ids), "scheduled twice"
        return self.rng.random() < self.failure_rate

    def run(self) -> dict[str, Transcript]:
        arrivals = [Event(r.arrival_time, r) for r in self.requests]
        aborts = [Event(time, request_id) for request_id, time in self.aborts.items()]
        transcripts = drive(
            self.core,
            self.clock,
            arrivals + aborts,
            after_step=self.core.scheduler.check_integrity,
            max_steps=20_000,
        )
        self.core.scheduler.check_integrity()
        return transcripts

    def expected(self, request: AddRequest) -> list[int]:
        params = request.sampling_params
        assert params.max_tokens is not None
        stops = set(params.stop_token_ids or ()) | (
            set() if params.ignore_eos else set(request.eos_token_ids)
        )
        answer = modelled_tokens(request.prompt_token_ids, params.max_tokens, VOCAB)
        end = next((i + 1 for i, token in enumerate(answer) if token in stops), len(answer))
        return answer[:end]


def run_world(seed: int) -> World:
    """Run one world and assert that everybody got exactly what is theirs."""
    world = World(seed)
    transcripts = world.run()
    for request in world.requests:
        transcript = transcripts[request.request_id]
        expected = world.expected(request)
        last = transcript.last
        if last is not None and last.finish_reason is FinishReason.ERROR:
            growth = len(request.prompt_token_ids) + (request.sampling_params.max_tokens or 0)
            assert world.failure_rate > 0 or growth > world.capacity
            assert transcript.token_ids == expected[: len(transcript.token_ids)]
        elif request.request_id in world.aborts and not transcript.finished:
            assert transcript.token_ids == expected[: len(transcript.token_ids)]
        else:
            assert transcript.token_ids == expected
            assert transcript.finished
    return world


@pytest.mark.parametrize("batch", range(10))
def test_random_worlds(batch: int) -> None:
    per_batch = SEEDS // 10
    for seed in range(batch * per_batch, (batch + 1) * per_batch):
        try:
            run_world(seed)
        except (Exception, ViolationError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    run_world(seed)


def test_the_same_seed_is_the_same_world() -> None:
    def history(seed: int) -> list[tuple[str, list[int], list[float]]]:
        transcripts = World(seed).run()
        return [(k, t.token_ids, t.token_times) for k, t in transcripts.items()]

    assert history(11) == history(11)


def test_worlds_preempt_and_share() -> None:
    """The worlds are worth simulating: they do what they are there to try."""
    stats = [run_world(seed).core.scheduler.stats() for seed in range(60)]
    assert sum(s.num_preemptions for s in stats) > 50
    assert sum(s.prefix_cache_hits for s in stats) > 1000
    hosts = [s.host_tier for s in stats if s.host_tier]
    assert sum(host.swapped_in for host in hosts) > 10
    assert sum(host.loaded for host in hosts) > 10
    assert sum(host.failed for host in hosts) > 0
