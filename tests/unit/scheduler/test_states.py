"""What recurrent layers recompute: the real scheduler and slots, on modelled states."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from quire.core.batch import SchedulerOutput
from quire.core.config import EngineConfig, SchedulerConfig, StateConfig, TierConfig
from quire.core.messages import AddRequest
from quire.core.model_config import ModelConfig
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.kv.states import snapshot_distance
from quire.simulate.clock import VirtualClock
from tests.simulation.executor import ModelledExecutor, modelled_tokens

BLOCK = 16
VOCAB = 97
NO_TIERS = TierConfig()


class Engine:
    """A core whose executor checks every state, and counts the tokens that it computes."""

    def __init__(
        self,
        states: StateConfig,
        num_blocks: int = 400,
        max_num_seqs: int = 8,
        chunk: int = 512,
        tiers: TierConfig = NO_TIERS,
    ) -> None:
        self.computed = 0
        clock = VirtualClock()
        config = EngineConfig(
            "modelled",
            ModelConfig("llama", VOCAB, 1, 1, 1, 1, 1, 1, 10_000),
            "dummy", "float32", None, "float32", 0, BLOCK, num_blocks, None, 0,
            enable_prefix_caching=True,
            scheduler=SchedulerConfig(10_000, max_num_seqs, chunk),
            ops="reference",
            num_threads=1,
            tiers=tiers,
        )  # fmt: skip
        executor = ModelledExecutor(
            num_blocks=num_blocks, block_size=BLOCK, vocab_size=VOCAB, clock=clock, states=states,
            fails=self._count,
        )  # fmt: skip
        self.core = EngineCore(config, executor, clock)
        self._ids = 0

    def _count(self, step: SchedulerOutput) -> bool:
        self.computed += step.total_num_scheduled_tokens
        return False

    def answer(self, prompts: Sequence[list[int]], count: int = 8) -> int:
        """Answer prompts that arrive together; return how many tokens were computed."""
        self.computed = 0
        for prompt in prompts:
            self._ids += 1
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
            message = AddRequest(str(self._ids), pack_tokens(prompt), params, arrival_time=0.0)
            self.core.add(message)
        while self.core.step():
            self.core.scheduler.check_integrity()
        return self.computed


def tokens(count: int, seed: int = 0) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(VOCAB) for _ in range(count)]


def states(num_slots: int = 100, spacing: int = 256) -> StateConfig:
    return StateConfig(num_slots, per_request=2, spacing=spacing)


def test_the_second_turn_computes_what_is_new() -> None:
    """Of a conversation of 2,000 tokens a block is computed again, and the new turn."""
    engine, prompt = Engine(states()), tokens(2000)
    first = engine.answer([prompt], 100)
    assert first == 2099
    turn = [*prompt, *modelled_tokens(prompt, 100, VOCAB), *tokens(40, 1)]
    assert engine.answer([turn], 1) <= BLOCK + 40
    again = [*turn, *modelled_tokens(turn, 1, VOCAB), *tokens(40, 2)]
    assert engine.answer([again], 1) <= BLOCK + 41


def test_an_edit_computes_from_the_nearest_snapshot() -> None:
    """Of a prompt of 2,000 tokens an eighth at most, however large a state is."""
    engine, prompt = Engine(states(spacing=4096)), tokens(2000)
    engine.answer([prompt], 1)
    edited = [*prompt[:1500], 96 - prompt[1500], *prompt[1501:]]
    assert engine.answer([edited], 1) == 2000 - 1500 // 256 * 256
    # The second prompt has left the cached prefix there: a third one goes on from that block.
    third = [*prompt[:1500], 96 - prompt[1500], 1 - prompt[1501] % 2, *prompt[1502:]]
    assert engine.answer([third], 1) == 2000 - 1500 // BLOCK * BLOCK


def test_long_prompts_have_snapshots_at_the_same_positions_as_short_ones() -> None:
    engine, prompt = Engine(states(spacing=4096)), tokens(3000)
    engine.answer([prompt], 1)
    assert engine.answer([[*prompt[:1400], 96 - prompt[1400]]], 1) == 1401 - 1024
    assert [snapshot_distance(n, 1024) for n in (100, 2048, 2049, 10**6)] == [256, 256, 512, 1024]


def test_requests_that_arrive_together_compute_their_prompt_once() -> None:
    engine, prompt = Engine(states()), tokens(400)
    whole = engine.answer([prompt], 4)
    other = Engine(states())
    assert other.answer([prompt] * 5, 4) <= whole + 4 * (BLOCK + 4)


def test_few_slots_delay_requests_and_lose_none() -> None:
    """Room for one sequence and a snapshot."""
    engine = Engine(states(num_slots=4))
    prompts = [tokens(100, seed) for seed in range(4)]
    assert engine.answer(prompts, 20) == 4 * 119


@pytest.mark.parametrize("stored", [False, True])
def test_a_preempted_request_goes_on_from_host_memory(stored: bool) -> None:
    """It computes a block again; without host memory, all that was evicted."""
    tiers = TierConfig(num_offload_slots=100, num_state_slots=20) if stored else NO_TIERS
    engine = Engine(states(), num_blocks=40, tiers=tiers)
    prompts = [tokens(200, seed) for seed in range(3)]  # 20 blocks each, with their answers
    again = engine.answer(prompts, 120) - 3 * 319
    preempted = engine.core.scheduler.stats().num_preemptions
    assert preempted > 0
    assert (again <= preempted * BLOCK) == stored


@pytest.mark.parametrize("reset", [False, True])
def test_an_answer_keeps_one_snapshot(reset: bool) -> None:
    """The snapshot of each block replaces the last one, but not that of the prompt."""
    engine = Engine(states())
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    engine.core.add(AddRequest("r", pack_tokens(tokens(100)), params, arrival_time=0.0))
    cache = engine.core.scheduler.kv.states
    for _ in range(150):
        engine.core.step()
    held = cache.pool.num_used
    assert held + cache.pool.num_cached <= 2 + 3
    if reset:
        engine.core.call("reset_prefix_cache", [])
        while engine.core.step():
            pass
        assert cache.pool.num_cached == 0
        assert engine.answer([tokens(100)], 1) == 100
