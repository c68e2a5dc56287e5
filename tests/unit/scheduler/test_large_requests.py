"""A request with most of the cache takes turns with other clients' requests."""

from __future__ import annotations

from typing import Any

from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import make, request, step


class Clock:
    """Steps of an eighth of a second; `log` has each one's requests."""

    def __init__(self, s: Scheduler) -> None:
        self.s = s
        self.now = 0.0
        self.log: list[set[str]] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            given, _ = step(self.s, begin=self.now, end=self.now + 0.125)
            self.now += 0.125
            self.log.append(set(given))


def filled(num_prompt: int = 960, **options: Any) -> Clock:
    """Return a scheduler whose 64 blocks client "a" holds nearly all of."""
    clock = Clock(make(num_blocks=64, seqs=16, budget=999, **options))
    clock.s.add(request("p", num_prompt, client="a", max_tokens=60))
    clock.steps(1)
    return clock


def test_it_makes_way_after_its_turn_and_comes_back() -> None:
    clock = filled()
    clock.s.add(request("b", 120, client="b", max_tokens=4))
    clock.steps(10)
    assert clock.log == [{"p"}] * 5 + [{"b"}] * 4 + [{"p"}] * 2
    assert clock.s.stats().num_preemptions == 1


def test_it_runs_for_half_of_the_time() -> None:
    clock = filled()
    for number in range(9):
        clock.s.add(request(f"{number}", 120, client="b", max_tokens=8))
    clock.steps(60)
    assert {f"{number}" for number in range(4)} <= set().union(*clock.log)
    turns = [names for names in clock.log if "p" in names]
    assert 0.45 <= len(turns) / len(clock.log) <= 0.6


def test_those_that_wait_come_together() -> None:
    clock = filled()
    for name in "bcd":
        clock.s.add(request(name, 120, client=name, max_tokens=4))
    clock.steps(12)
    assert clock.log[7:9] == [{"b", "c", "d"}] * 2
    assert clock.log[11:] == [{"p"}] * 2
    assert clock.s.stats().num_preemptions == 1


def test_it_stays_for_a_large_one() -> None:
    clock = filled()
    clock.s.add(request("b", 500, client="b", max_tokens=4))
    clock.steps(30)
    assert clock.s.stats().num_preemptions == 0


def test_requests_with_half_of_the_cache_stay() -> None:
    clock = filled(480)
    clock.s.add(request("c", 420, client="c", max_tokens=60))
    clock.s.add(request("b", 140, client="b", max_tokens=4))
    clock.steps(30)
    assert clock.s.stats().num_preemptions == 0
    assert clock.log[-1] == {"p", "c"}


def test_it_computes_its_prompt_to_the_end() -> None:
    clock = Clock(make(num_blocks=64, seqs=16, budget=64, enable_prefix_caching=False))
    clock.s.add(request("p", 960, client="a", max_tokens=60))
    clock.steps(1)
    clock.s.add(request("b", 120, client="b", max_tokens=4))
    clock.steps(40)
    begun = next(i for i, names in enumerate(clock.log) if "b" in names)
    assert 15 + 14 <= begun <= 15 + 16  # as many steps to decode as to compute the prompt
