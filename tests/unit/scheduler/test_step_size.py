"""What the token budget of a step is chosen from, and when it is not chosen at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire.core.batch import StepTimes
from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.kv.lower_tiers import PromisedBlocks
from quire.scheduler.budget import LATE
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, Tokens, request, step
from tests.unit.scheduler.test_pending_loads import land, loads

Asked = list[tuple[Any, ...]]


def make(**limits: Any) -> Scheduler:
    config = SchedulerConfig(1000, 4, 64, max_itl_stretch=4.0, **limits)
    return Scheduler(config, CacheConfig(BLOCK, 64), Tokens())


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scheduler, str], Asked]:
    """Replaces what chooses the budgets of a scheduler, and returns what it is asked."""

    def watch(s: Scheduler, name: str) -> Asked:
        asked: Asked = []

        def tokens(*given: Any, **_: Any) -> int:
            asked.append(tuple(each if isinstance(each, int) else each.tolist() for each in given))
            return 48

        monkeypatch.setattr(getattr(s._step_size, name), "tokens", tokens)
        return asked

    return watch


def test_nothing_is_chosen_while_all_decode(watch: Callable[[Scheduler, str], Asked]) -> None:
    s = make()
    for name in "ab":
        s.add(request(name, 4, max_tokens=50))
    step(s)
    asked = watch(s, "_budget")
    s.abort("b")
    step(s)
    assert asked == []


def test_now_and_then_a_step_only_decodes() -> None:
    config = SchedulerConfig(1000, 3, 8, max_itl_stretch=4.0)
    s = Scheduler(config, CacheConfig(BLOCK, 128), Tokens())
    s.add(request("a", 4, max_tokens=900))
    step(s, times=StepTimes(model=1.0))
    s.add(request("b", 900))
    s.add(request("c", 900))
    given = [step(s, times=StepTimes(model=1.0))[0] for _ in range(2 * LATE)]
    assert [number for number, each in enumerate(given) if len(each) == 1] == [LATE - 1]
    assert given[LATE - 1] == {"a": 1}


def test_a_prompt_of_two_tokens_is_one(watch: Callable[[Scheduler, str], Asked]) -> None:
    s = make()
    s.add(request("a", 4, max_tokens=50))
    step(s)
    s.add(request("b", 50))
    asked = watch(s, "_budget")
    assert [step(s)[0]["b"] for _ in range(2)] == [47, 3]
    assert [wanted for wanted, *_ in asked] == [[1], [1, 3]]
    s.add(request("c", 49))
    assert [step(s)[0]["c"] for _ in range(2)] == [46, 3]
    s.add(request("d", 47))
    assert [step(s)[0]["d"] for _ in range(2)] == [45, 2]
    assert asked[-1][0] == [1, 1, 1, 2]


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_streams_that_go_on_are_counted(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """In the queue and in the batch, until they decode; and no new prompt."""
    s, asked = make(policy=policy), list[int]()
    assert s._step_size._budget is not None

    def tokens(*_: Any, resumed: int, **__: Any) -> int:
        asked.append(resumed)
        return 48

    monkeypatch.setattr(s._step_size._budget, "tokens", tokens)
    s.add(request("a", 4, max_tokens=50))
    step(s)
    streams = [request(name, 60, max_tokens=50) for name in "bcd"]
    for stream in streams[:2]:
        stream.token_ids.extend([1, 2])
    for stream in streams:
        s.add(stream)
    s.abort(["c"])
    for _ in range(4):
        step(s)
        s.check_integrity()
    assert asked == [0, 1, 1, 0]


def promised(**limits: Any) -> Scheduler:
    """A scheduler that begins to load the blocks of a, and to which d comes meanwhile."""
    tier = PromisedBlocks()
    cache = CacheConfig(BLOCK, 64, tiers=TierConfig(num_offload_slots=1))
    config = SchedulerConfig(1000, 4, 64, max_itl_stretch=4.0, **limits)
    s = Scheduler(config, cache, Tokens(), lower=[tier])
    asked = request("a", 3 * BLOCK + 4)
    tier.promise(s.kv.hasher.extend(asked))
    s.add(asked)
    return s


def test_who_loads_counts_as_waiting(watch: Callable[[Scheduler, str], Asked]) -> None:
    s = promised()
    asked = watch(s, "_budget")
    land(s, step := s.schedule(0.0), pending=(blocks := loads(step)))
    s.add(request("d", 4))
    land(s, s.schedule(0.0), pending=blocks)
    assert [waiting for _, _, waiting, _ in asked] == [1, 2]


def test_who_loads_is_no_prompt_to_level(watch: Callable[[Scheduler, str], Asked]) -> None:
    s = promised(micro_batches=2)
    asked = watch(s, "_chunks")
    land(s, step := s.schedule(0.0), pending=(blocks := loads(step)))
    land(s, s.schedule(0.0), pending=blocks)
    assert asked == [(3 * BLOCK + 4, 0, 1)]


def test_with_stages_a_prompt_beside_steps_in_flight_is_level(
    watch: Callable[[Scheduler, str], Asked],
) -> None:
    """The request whose next token is on its way has no pace to keep in this step."""
    s = make(micro_batches=2)
    s.add(request("a", 4, max_tokens=50))
    step(s)
    asked = watch(s, "_chunks")
    s.schedule(0.0)
    s.add(request("b", 50))
    assert s.schedule(0.0).num_scheduled_tokens.tolist() == [48]
    assert asked == [(50, 0, 1)]
    assert s.schedule(0.0).num_scheduled_tokens.tolist() == [2]
    assert asked[1:] == [(50, 48, 1)]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "priority"])
def test_nobody_can_join_without_a_seat(policy: Any) -> None:
    s = Scheduler(SchedulerConfig(1000, 1, 64, policy), CacheConfig(BLOCK, 64))
    for name in "ab":
        s.add(request(name, 4, max_tokens=50))
    assert s._state.may_admit()
    step(s)
    assert s._state.may_admit() == (policy == "priority")
    s.abort("b")
    assert not s._state.may_admit()


def test_one_request_with_a_token_to_compute_makes_a_step_ready() -> None:
    s = make()
    for name, most in (("a", 1), ("b", 9)):
        s.add(request(name, 4, max_tokens=most))
    s.schedule(0.0)
    assert s.has_ready()
    s.abort("b")
    assert not s.has_ready()
