"""The running batch and what a step asks of its parts: passes, drafts, budgets."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quire.core.batch import ModelOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, SpeculativeConfig, TierConfig
from quire.core.cost import StepCost
from quire.scheduler.depth import PAUSE
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, Tokens, make, request, sampled, step
from tests.unit.scheduler.test_loading import compute, finish


def test_rows_and_versions() -> None:
    running = RunningBatch(4, BLOCK, 1)
    first = running.version
    assert first != 0  # which stands for no batch
    requests = [request(name, 4) for name in "abc"]
    for order, new in enumerate(requests):
        new.order = (0, order)
    a, b, c = (Admitted(new, [0], 0, 4, 0, 0) for new in requests)
    assert running.add([b, c]) is None  # no row has moved
    moved = running.add([a])
    assert moved.tolist() == [1, 2, 0]
    assert running.rows_of([requests[2], request("d", 4), requests[0]]).tolist() == [2, -1, 0]
    assert running.version not in (0, first)


def test_an_abort_of_who_waits_leaves_the_batch_alone() -> None:
    s = make(seqs=1)
    for name in "ab":
        s.add(request(name, 4))
    step(s)
    before = s.running.version
    s.abort(["b"])
    assert s.running.version == before
    s.abort(["a"])
    assert s.running.version != before


def test_the_first_request_that_needs_something_ends_the_quiet_steps() -> None:
    for others in ([(4, 5)], [(4, 5), (12, 50)], [(12, 50), (4, 5)]):
        s = make()
        for i, (length, max_tokens) in enumerate([(4, 50), *others]):
            s.add(request(f"{'abc'[i]}", length, max_tokens=max_tokens))
        step(s)
        assert min(s.running.quiet, s.running.until_block) == 3
    s = make(sliding_window=100)
    s.add(request("a", 4, max_tokens=50))
    step(s)
    assert (s.running.quiet, s.running.until_block) == (48, 11)


@pytest.mark.parametrize("why", ["waiting", "a prompt", "loading", ""])
def test_several_passes_only_while_all_decode_and_nobody_waits(why: str) -> None:
    cache = CacheConfig(BLOCK, 16, tiers=TierConfig(num_offload_slots=16))
    s = Scheduler(SchedulerConfig(1000, 2, 40), cache)
    for name, length in (("a1", 7 * BLOCK), ("b", 15 * BLOCK + 8)):
        s.add(request(name, length, max_tokens=1))
        finish(s)
    s.add(request("c", 1, max_tokens=40))
    compute(s, s.schedule(0.0))
    if why == "waiting":
        s.add(request("d", 1, max_tokens=40))
        compute(s, s.schedule(0.0))
        s.add(request("e", 1, max_tokens=40))
    elif why == "a prompt":
        s.add(request("d", 41))
        compute(s, s.schedule(0.0))  # 39 tokens of it: two are left
    elif why == "loading":
        s.add(request("a2", 7 * BLOCK))
        assert s.schedule(0.0).block_copies is not None
    batch = s.schedule(0.0, num_steps=4)
    assert (batch.num_passes, batch.width) == ((1, 1) if why else (4, 4))


def test_the_last_token_of_a_prompt_may_yield_several_and_its_first_comes_once() -> None:
    s = make(budget=BLOCK)
    s.add(request("a", BLOCK + 1, max_tokens=50))
    step(s)
    batch = s.schedule(0.0, num_steps=3)
    assert batch.width == 3
    outputs = s.update(batch, ModelOutput(token_columns([[5, -1, -1]])), 0.0)
    assert [output.new_token_ids for output in outputs.outputs] == [[5]]
    batch = s.schedule(0.0)
    outputs = s.update(batch, sampled(s, batch, 5), 0.0)
    assert (outputs.outputs, outputs.events) == ([], [])
    assert outputs.new_token_ids == [5]


def new(cost: StepCost | None = None, seats: int = 4, **limits: Any) -> Scheduler:
    return Scheduler(SchedulerConfig(1000, seats, 64, **limits), CacheConfig(BLOCK, 64), cost)


def test_a_budget_needs_a_cost_and_a_limit() -> None:
    for s in (new(max_itl_stretch=2.0), new(Tokens())):
        s.add(request("a", 4))
        step(s)
        s.add(request("b", 100))
        assert step(s)[0] == {"a": 1, "b": 63}


def test_what_the_budget_is_chosen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for steps that compute prompts: tokens, contexts, and who may join."""
    s = new(Tokens(), max_itl_stretch=4.0)
    asked: list[tuple[Any, ...]] = []

    def tokens(wanted: Any, computed: Any, waiting: int, pictured: int, **others: Any) -> int:
        assert not pictured
        assert others == {"resumed": 0, "reads": False, "most_crowd": math.inf, "rivals": []}
        asked.append((wanted.tolist(), computed.tolist(), waiting))
        return 40

    monkeypatch.setattr(s._step_size._budget, "tokens", tokens)
    s.add(request("a", 30))
    step(s)
    assert asked.pop() == ([], [], 1)
    step(s)
    assert asked == []
    for name in "bcdef":
        s.add(request(name, 60))
    assert step(s)[0] == {"a": 1, "b": 39}
    assert asked.pop() == ([1], [31], 3)
    s.abort("cdef")
    assert step(s)[0] == {"a": 1, "b": 21}
    assert asked.pop() == ([1, 21], [32, 39], 0)


def test_what_chunks_are_chosen_from_with_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if no request decodes: the length of the first prompt, its computed part, and how many
    prompts follow one another."""
    s = new(Tokens(), max_itl_stretch=4.0, micro_batches=2)
    asked: list[tuple[int, int, int]] = []

    def tokens(length: int, computed: int, prompts: int = 1) -> int:
        asked.append((length, computed, prompts))
        return 48

    monkeypatch.setattr(s._step_size._chunks, "tokens", tokens)
    s.add(request("a", 60))
    s.add(request("b", 30))
    assert step(s)[0] == {"a": 48}
    assert asked.pop() == (60, 0, 2)
    assert step(s)[0] == {"a": 12, "b": 30}
    assert asked.pop() == (60, 48, 2)
    s.add(request("c", 70))
    assert "c" in step(s)[0]
    assert asked == []


def drafting(most: int = 3) -> Scheduler:
    speculative = SpeculativeConfig(
        "ngram", most, num_speculative_tokens_per_batch_size=((1, 9, most),)
    )
    return new(seats=2, speculative=speculative)


def test_what_drafts_are_chosen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    s = drafting()
    asked, choose = [], s._depth.choose

    def spy(running: Any, decodes: Any, budget: int, *, mixed: bool) -> Any:
        asked.append((decodes.tolist(), budget, mixed))
        return choose(running, decodes, budget, mixed=mixed)

    monkeypatch.setattr(s._depth, "choose", spy)
    s.add(request("a", 4, max_tokens=50))
    step(s)
    step(s)
    assert asked[-1] == ([True], 64, False)
    s.add(request("c", 200))
    step(s)
    assert asked[-1] == ([True], 64, True)  # one waits that may join
    step(s)
    assert asked[-1] == ([True, False], 64, True)  # a prompt runs


def test_the_first_step_behind_a_prompt_drafts() -> None:
    s = drafting()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    batch = s.schedule(0.0)
    assert batch.max_new_tokens.tolist() == [4]


def test_a_choice_of_no_drafts_holds_until_a_request_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = SpeculativeConfig(
        "ngram", 3, num_speculative_tokens_per_batch_size=((1, 1, 0), (2, 9, 3))
    )
    s = new(seats=2, speculative=fixed)
    asked, choose = [], s._depth.choose

    def spy(*args: Any, mixed: bool) -> Any:
        asked.append(args[0].version)
        return choose(*args, mixed=mixed)

    monkeypatch.setattr(s._depth, "choose", spy)
    s.add(request("a", 4, max_tokens=120))
    for _ in range(1 + 2 * (1 + PAUSE)):
        step(s)
    assert len(asked) == 1 + 2  # nothing decodes in the first step
    s.add(request("b", 4, max_tokens=40))
    step(s)
    assert len(asked) == 1 + 3
    batch = s.schedule(0.0)
    assert batch.max_new_tokens.tolist() == [4, 4]
    s.update(batch, sampled(s, batch, 5), 0.0)


@pytest.mark.parametrize("waits", [False, True])
def test_drafts_come_with_each_pass(waits: bool) -> None:
    s = drafting()
    s.add(request("a", 4, max_tokens=50))
    s.add(request("b", 4, max_tokens=50))
    step(s)
    if waits:
        s.add(request("c", 4))
    batch = s.schedule(0.0, num_steps=2)
    passes = 1 if waits else 2
    assert batch.num_passes == passes
    assert batch.max_new_tokens.tolist() == [4 * passes, 4 * passes]


def test_what_the_tower_has_read_adds_up() -> None:
    s = make()
    s.add(request("a", 4))
    assert s.stats().encoded_tokens == 0
    step(s, encoded_tokens=5)
    step(s)
    step(s, encoded_tokens=2)
    assert s.stats().encoded_tokens == 7


def test_micro_batches_share_the_decoding_requests() -> None:
    """A step in flight has the next tokens of its part, so the other part is in the next one."""
    s = new(micro_batches=2, seats=5)
    for name in "abcde":
        s.add(request(name, 4, max_tokens=50))
    step(s)
    first, second, third = s.schedule(0.0), s.schedule(0.0), s.schedule(0.0)
    assert (first.request_ids, second.request_ids) == ([*"abc"], [*"de"])
    assert third.empty
    s.check_integrity()


def test_with_micro_batches_no_step_is_like_the_one_before() -> None:
    s = new(micro_batches=2)
    s.add(request("a", 4, max_tokens=50))
    for _ in range(3):
        step(s)
        assert s.running.quiet == 0


def test_a_prompt_has_no_drafts() -> None:
    s = drafting()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    s.add(request("b", 80))
    step(s)
    batch = s.schedule(0.0)
    assert batch.request_ids == ["a", "b"]
    assert batch.max_new_tokens.tolist() == [4, 1]


def test_steps_in_flight_share_an_array_that_nobody_changes() -> None:
    s = make()
    s.add(request("a", 4))
    step(s)
    assert s.schedule(0.0).num_scheduled_tokens is s.running.ones
    with pytest.raises(ValueError, match="read-only"):
        s.running.ones[0] = 2
