"""Who runs next, who has to leave, and that nobody waits for ever."""

from __future__ import annotations

from random import Random

from quire.core.request import RequestStatus
from quire.scheduler.queue import REACH, REMEMBERED, Rounds, WaitingQueue
from tests.unit.scheduler.steps import make, request, sampled, step


def test_a_higher_priority_takes_the_seat_of_the_lowest() -> None:
    s = make(seqs=2, policy="priority")
    s.add(request("a", 4, priority=1))
    s.add(request("b", 4, priority=2))
    step(s)
    s.add(request("c", 4, priority=0))
    given, _ = step(s)
    assert given == {"a": 1, "c": 4}
    assert s.requests["b"].status is RequestStatus.PREEMPTED
    s.abort(["c"])
    given, outputs = step(s)
    assert set(given) == {"a", "b"}
    assert outputs["b"].num_preemptions == 1


def test_a_higher_priority_takes_the_blocks_of_the_lowest() -> None:
    s = make(num_blocks=8, policy="priority")
    s.add(request("a", 40, priority=1, max_tokens=5))
    s.add(request("b", 40, priority=2, max_tokens=5))
    step(s)
    step(s)
    s.add(request("c", 60, priority=0, max_tokens=3))
    given, _ = step(s)
    assert given == {"a": 1, "c": 60}
    assert s.requests["b"].status is RequestStatus.PREEMPTED


def test_nobody_leaves_for_an_equal_or_in_vain() -> None:
    s = make(num_blocks=8, policy="priority")
    s.add(request("a", 60, priority=0, max_tokens=5))
    s.add(request("b", 30, priority=2, max_tokens=5))
    step(s)
    step(s)
    s.add(request("c", 70, priority=1, max_tokens=5))  # would not fit without b either
    s.add(request("d", 30, priority=2))
    for _ in range(2):
        assert step(s)[0] == {"a": 1, "b": 1}
    assert s.stats().num_preemptions == 0


def test_who_leaves_in_flight_keeps_its_token_and_comes_back_after_it() -> None:
    s = make(seqs=1, policy="priority")
    s.add(request("b", 4, priority=1))
    first = s.schedule(0.0)
    s.add(request("a", 4, priority=0, max_tokens=1))
    second = s.schedule(0.0)
    assert (second.request_ids, second.removed) == (["a"], ["b"])
    told = s.update(first, sampled(s, first, 5), 0.0)
    assert [(o.request_id, o.new_token_ids) for o in told.each()] == [("b", [5])]
    s.update(second, sampled(s, second, 5), 0.0)
    third = s.schedule(0.0)
    (resumed,) = third.new_sequences
    assert list(resumed.token_ids) == [98] * 4 + [5]


def test_the_longest_cached_prefix_goes_first() -> None:
    s = make(seqs=1, budget=200, policy="lpm")
    s.add(request("b", 64, max_tokens=1))
    step(s)
    for name, length in [("a1", 64), ("b2", 40), ("c3", 64), ("b4", 64)]:
        s.add(request(name, length, max_tokens=1))
    assert [next(iter(step(s)[0])) for _ in range(4)] == ["b4", "b2", "a1", "c3"]


def test_nobody_is_overtaken_by_more_than_the_reach() -> None:
    s = make(seqs=1, budget=200, policy="lpm")
    s.add(request("b", 64, max_tokens=1))
    step(s)
    s.add(request("a", 64, max_tokens=1))
    order = []
    for i in range(2 * REACH):
        s.add(request(f"b{i}", 64, max_tokens=1))
        order.append(next(iter(step(s)[0])))
    assert order.index("a") == REACH - 1


def test_lpm_uses_prefixes_before_they_are_evicted() -> None:
    """Eight system prompts of 12 blocks, asked for in turn, in a cache that holds four of them."""
    hits = {}
    for policy in ("fcfs", "lpm"):
        s = make(num_blocks=52, seqs=2, budget=400, policy=policy)
        for i in range(64):
            s.add(request(f"{'abcdefgh'[i % 8]}{i}", 12 * 16 + 8, max_tokens=2))
        while s.has_unfinished():
            step(s)
        hits[policy] = s.stats().prefix_cache_hits
    assert hits["lpm"] > 4 * hits["fcfs"]


def test_a_long_prompt_is_served_however_many_short_ones_come() -> None:
    rng = Random(0)
    for policy in ("fcfs", "lpm"):
        s = make(num_blocks=40, seqs=4, budget=64, policy=policy)
        for i in range(8):
            s.add(request(f"s{i}", 20, max_tokens=4))
        s.add(request("long", 600, max_tokens=2))
        for i in range(8, 400):
            s.add(request(f"s{i}", rng.randint(1, 30), max_tokens=4))
            step(s)
            if "long" not in s.requests:
                break
        assert "long" not in s.requests, policy


def test_clients_take_turns() -> None:
    s = make(seqs=1, budget=200)
    for name in ("a0", "a1", "a2", "a3"):
        s.add(request(name, 8, client="a", max_tokens=1))
    assert set(step(s)[0]) == {"a0"}
    for name in ("b0", "b1", "c0"):
        s.add(request(name, 8, client=name[0], max_tokens=1))
    served = [next(iter(step(s)[0])) for _ in range(6)]
    assert served == ["b0", "c0", "a1", "b1", "a2", "a3"]
    s.add(request("a4", 8, client="a", max_tokens=1))  # no credit for having been away
    s.add(request("b2", 8, client="b", max_tokens=1))
    s.add(request("b3", 8, client="b", max_tokens=1))
    assert [next(iter(step(s)[0])) for _ in range(3)] == ["b2", "a4", "b3"]


def test_rounds_of_clients_that_have_left_are_forgotten() -> None:
    """Also if each client comes once."""
    rounds = Rounds()
    for number in range(10 * REMEMBERED):
        rounds.reach(rounds.next(f"client {number}"))
        assert len(rounds._last) <= 3 * REMEMBERED
    first, second = (rounds.next("flood") for _ in range(2))
    assert second == first + 1


def test_new_clients_that_keep_coming_let_others_have_their_next_turns() -> None:
    queue = WaitingQueue()
    for name in ("a", "b"):
        queue.add(request(name, 8, client="patient"), 0)
    for number in range(4 * REMEMBERED):
        queue.add(request(f"n{number}", 8, client=str(number)), 0)
        if (first := queue.peek()).request_id == "b":
            break
        queue.take(first)
    assert number <= 2 * REMEMBERED
