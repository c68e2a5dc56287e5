"""What is foreseen: the pace of steps, quiet ones, and several at once."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, StepTimes, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, SpeculativeConfig
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.steps import NO_BLOCKS
from tests.unit.scheduler.steps import BLOCK, Tokens, make, request, sampled, step


def test_the_budget_observes_what_a_step_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scheduler(
        SchedulerConfig(1000, 6, 64, max_itl_stretch=4.0), CacheConfig(BLOCK, 64), Tokens()
    )
    s.add(request("a", 100))
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(s._step_size._budget, "observe", lambda *given: seen.append(given))
    for _ in range(2):
        step(s, times=StepTimes(model=2.0))
    assert seen == [([64], [0], 2.0), ([36], [64], 2.0)]
    batch = s.schedule(0.0)
    result = sampled(s, batch, 5)
    s._step_size.observe(batch, result)  # its time is not known
    assert len(seen) == 2
    result.times, result.num_passes = StepTimes(model=3.0, sample=1.0), 2
    s._step_size.observe(batch, result)
    assert seen[2:] == [([1], [100], 2.0)]


def test_a_prompt_beside_decodes_gets_what_keeps_their_pace() -> None:
    """Three decode, so that with a stretch of 4 a step may take 12 s."""
    limits = SchedulerConfig(1000, 6, 64, max_itl_stretch=4.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 64), Tokens())
    for name in "abc":
        s.add(request(name, 4, max_tokens=50))
    assert step(s)[0] == {"a": 4, "b": 4, "c": 4}  # nobody has a pace to keep
    s.add(request("d", 100))
    assert step(s)[0] == {"a": 1, "b": 1, "c": 1, "d": 9}
    s.abort(["d"])
    step(s, times=StepTimes(model=3.0))  # as predicted
    s.add(request("e", 100))
    batch = s.schedule(0.0)
    assert batch.total_num_scheduled_tokens == 12
    slow = StepTimes(model=24.0)  # twice as long as predicted
    s.update(batch, sampled(s, batch, 5, times=slow), 0.0)
    assert s.schedule(0.0).total_num_scheduled_tokens == 6


def test_fewer_steps_at_once_rather_than_a_preemption() -> None:
    s = make(num_blocks=4, seqs=2)
    for name in "ab":
        s.add(request(name, 31, max_tokens=17))
    step(s)
    for _ in range(2):
        batch = s.schedule(0.0, num_steps=2)
        s.update(batch, sampled(s, batch, 5), 0.0)
        if batch.width == 1:
            break
    assert batch.width == 1
    assert s.stats().num_preemptions == 0


@pytest.mark.parametrize(
    ("length", "max_tokens", "cache", "quiet"),
    [
        (4, 50, {}, 11),  # in the twelfth step its block is full, and enters the prefix cache
        (4, 5, {}, 3),  # the fourth gives the last token
        (16, 50, {}, 0),  # the next one needs a block
        (4, 50, {"enable_prefix_caching": False}, 12),  # a full block is nothing to note
        (20, 50, {"sliding_window": 8}, 3),  # then no window reaches its first block
    ],
)
def test_steps_in_which_nothing_but_decoding_happens_are_foreseen(
    length: int, max_tokens: int, cache: dict[str, Any], quiet: int
) -> None:
    s = make(**cache)
    s.add(request("a", length, max_tokens=max_tokens))
    step(s)
    assert min(s.running.quiet, s.running.until_block) == quiet
    for left in range(quiet)[::-1]:
        batch = s.schedule(0.0)
        assert batch.new_blocks is NO_BLOCKS  # nobody has looked for any
        s.update(batch, sampled(s, batch, 5), 0.0)
        assert min(s.running.quiet, s.running.until_block) == left


@pytest.mark.parametrize("ahead", [1, 2])
def test_quiet_steps_have_the_blocks_of_others(ahead: int) -> None:
    """Five requests outgrow the cache; one scheduler forgets before each step what it foresaw."""
    seen: list[list[Any]] = [[], []]
    for forgets, steps in zip((False, True), seen, strict=True):
        s, flying = make(13, seqs=5), deque[SchedulerOutput]()
        for number, name in enumerate("abcde"):
            s.add(request(name, 9 + 4 * number, max_tokens=60))
        while s.has_unfinished():
            while len(flying) < ahead and s.has_unfinished():
                if forgets:
                    s.running.quiet = 0
                flying.append(s.schedule(0.0))
            batch = flying.popleft()
            outputs = s.update(batch, sampled(s, batch, 5), 0.0)
            s.check_integrity()
            new = batch.new_blocks.tolist()
            steps.append((batch.request_ids, new, outputs.request_ids, s.stats()))
    assert seen[0] == seen[1]
    assert s.stats().num_preemptions > 0


def test_nothing_is_foreseen_behind_a_step_of_several_tokens() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    batch = s.schedule(0.0, num_steps=2)
    assert batch.width == 2
    assert s.running.quiet == 0


def test_nobody_holds_more_blocks_than_tokens_need() -> None:
    s = make(budget=16)
    s.add(request("a", 4 * BLOCK, max_tokens=2 * BLOCK))
    while s.has_unfinished():
        batch = s.schedule(0.0)
        computed = int(batch.num_computed_tokens[0] + batch.num_scheduled_tokens[0])
        assert s.kv.pool.num_used == -(-computed // BLOCK)
        s.update(batch, sampled(s, batch, 5), 0.0)


def test_a_request_that_just_fits_is_served() -> None:
    s = make(num_blocks=2)
    s.add(request("a", 30, max_tokens=2))
    while s.has_unfinished():
        step(s)


def test_a_row_may_end_before_the_others_of_several_steps() -> None:
    s = make(seqs=2)
    for name in "ab":
        s.add(request(name, 4, max_tokens=50))
    step(s)
    batch = s.schedule(0.0, num_steps=2)
    assert batch.width == 2
    requests = dict(s.requests)
    s.update(batch, ModelOutput(token_columns([[6, -1], [7, 8]])), 0.0)
    assert list(requests["a"].token_ids[4:]) == [5, 6]
    assert list(requests["b"].token_ids[4:]) == [5, 7, 8]


def test_several_steps_at_once_are_all_computed() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    for start in (4, 7, 10):
        batch = s.schedule(0.0, num_steps=3)
        assert batch.width == 3
        assert batch.num_computed_tokens.tolist() == [start]
        assert batch.num_scheduled_tokens.tolist() == [1]
        assert batch.total_num_scheduled_tokens == 3
        s.update(batch, sampled(s, batch, 5), 0.0)


def test_several_steps_at_once_may_take_the_last_block_and_outlast_some() -> None:
    s = make(num_blocks=3)
    s.add(request("a", BLOCK - 1, max_tokens=2))
    s.add(request("b", BLOCK - 1, max_tokens=20))
    step(s)
    s.abort(["a"])
    s.add(request("c", 4, max_tokens=2))
    step(s)  # b has its second block now
    batch = s.schedule(0.0, num_steps=4)
    assert batch.request_ids == ["b", "c"]
    assert batch.width == 4
    tight = make(num_blocks=2)
    tight.add(request("b", BLOCK - 1, max_tokens=17))
    step(tight)
    batch = tight.schedule(0.0, num_steps=4)
    assert batch.width == 4
    assert tight.kv.pool.num_free == 0


def test_nothing_is_computed_behind_a_last_token_that_is_being_sampled() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=1))
    s.schedule(0.0)
    assert s.schedule(0.0).empty


def test_stages_have_nothing_to_compute_while_all_requests_are_in_flight() -> None:
    """Requests of one step are not in the next: with two stages the other one waits for more."""
    for stages, ready in ((1, True), (2, False)):
        limits = SchedulerConfig(1000, 4, 64, micro_batches=stages)
        s = Scheduler(limits, CacheConfig(BLOCK, 64))
        s.add(request("a", 4))
        assert s.has_ready()
        batch = s.schedule(0.0)
        assert s.has_ready() == ready
        s.add(request("b", 4))
        assert s.has_ready()
        s.update(batch, sampled(s, batch, 5), 1.0)
        assert s.has_ready()


def test_nothing_is_ready_beside_the_last_step_of_all_requests() -> None:
    s = make()
    s.add(request("a", 4, max_tokens=1))
    batch = s.schedule(0.0)
    assert not s.has_ready()
    s.update(batch, sampled(s, batch, 5), 1.0)
    assert not s.has_ready()


def test_one_of_eight_quiet_steps_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SchedulerConfig(1000, 6, 64, max_itl_stretch=4.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 64), Tokens())
    s.add(request("a", 4, max_tokens=60))
    seen: list[int] = []
    monkeypatch.setattr(s._step_size, "observe", lambda batch, _: seen.append(batch.step))
    for _ in range(40):
        step(s)
    assert seen == [1, 8, 16, 24, 32, 40]


def test_drafts_learn_from_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times between the others count, too."""
    fixed = SpeculativeConfig("ngram", 3, num_speculative_tokens_per_batch_size=((1, 9, 0),))
    s = Scheduler(SchedulerConfig(1000, 6, 64, speculative=fixed), CacheConfig(BLOCK, 64))
    assert s._depth is not None
    s.add(request("a", 4, max_tokens=60))
    seen: list[str] = []
    monkeypatch.setattr(s._depth, "observe", lambda *_: seen.append("observe"))
    monkeypatch.setattr(s._depth, "rest", lambda _: seen.append("rest"))
    for _ in range(17):
        step(s)
    learned = [place + 1 for place, call in enumerate(seen) if call == "observe"]
    assert (len(seen), learned) == (17, [1, 2, 8, 16])
