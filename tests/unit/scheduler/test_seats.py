"""A client that holds many seats gives some up to one that waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.request import RequestStatus
from quire.scheduler.queue import REACH
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, make, request, step
from tests.unit.scheduler.test_adapters import adapted


def flooded(seqs: int = 8, queued: int = 4, **options: Any) -> Scheduler:
    """Return a scheduler whose seats client "a" holds, with more of its requests waiting."""
    s = make(seqs=seqs, budget=200, **options)
    for number in range(seqs + queued):
        s.add(request(f"a{number}", 8, client="a", max_tokens=100))
    step(s)
    return s


def holders(s: Scheduler) -> Counter[str]:
    return Counter(each.options.client for each in s.running.requests)


def test_a_client_without_a_seat_gets_one_at_once() -> None:
    s = flooded()
    s.add(request("b0", 8, client="b"))
    given, _ = step(s)
    assert given == {"b0": 8, **{f"a{number}": 1 for number in range(7)}}
    assert s.requests["a7"].status is RequestStatus.PREEMPTED
    s.abort(["b0"])
    assert "a7" in step(s)[0]  # before those that had not begun
    assert s.requests["a8"].status is RequestStatus.WAITING


def test_a_client_gets_up_to_half_as_many_seats_as_the_other_keeps() -> None:
    s = flooded(seqs=24)
    for number in range(20):
        s.add(request(f"b{number}", 8, client="b", max_tokens=100))
    for _ in range(10):
        step(s)
    assert holders(s) == {"a": 16, "b": 8}
    assert s.stats().num_preemptions == 8
    s.add(request("c0", 8, client="c", max_tokens=100))
    step(s)
    assert holders(s) == {"a": 15, "b": 8, "c": 1}


def test_a_seat_that_becomes_free_goes_to_the_client_that_is_owed_one() -> None:
    s = flooded(seqs=6)
    for number in range(4):
        s.add(request(f"b{number}", 8, client="b", max_tokens=2))
    served = [name for _ in range(5) for name in step(s)[0] if name.startswith("b")]
    assert served == ["b0", "b0", "b1", "b1", "b2", "b2", "b3", "b3"]
    assert s.stats().num_preemptions == 2  # of four answers


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_client_alone_or_with_few_seats_loses_none(policy: str) -> None:
    s = make(seqs=4, policy=policy)
    for number in range(8):
        s.add(request(f"{number}", 8, client=str(number % 4), max_tokens=100))
    s.add(request("x", 8, client="x"))
    for _ in range(5):
        step(s)
    assert s.stats().num_preemptions == 0
    alone = flooded(policy=policy)
    step(alone)
    assert alone.stats().num_preemptions == 0


def test_nobody_leaves_for_a_lower_priority() -> None:
    s = make(seqs=4, policy="priority")
    for number in range(4):
        s.add(request(f"a{number}", 8, client="a", priority=number // 2, max_tokens=100))
    step(s)
    s.add(request("b0", 8, client="b", priority=2))
    step(s)
    assert holders(s) == {"a": 4}
    s.add(request("c0", 8, client="c", priority=1))
    step(s)
    assert holders(s) == {"a": 3, "c": 1}
    assert "a3" not in s.running.request_ids


def test_a_request_that_goes_first_keeps_its_priority() -> None:
    s = make(seqs=8, policy="priority")
    for number in range(4):
        s.add(request(f"a{number}", 8, client="a", priority=0, max_tokens=100))
    step(s)
    s.add(request("b0", 8, client="b", priority=5, max_tokens=100))
    step(s)
    assert s.requests["b0"].order[0] == 5
    for number in range(4):
        s.add(request(f"c{number}", 8, client="c", priority=1, max_tokens=100))
    step(s)
    step(s)
    assert holders(s) == {"a": 4, "c": 4}


def test_blocks_are_made_free_too_or_nobody_leaves() -> None:
    s = make(num_blocks=16, seqs=8, budget=300)
    for name in "pqrs":  # other tokens each: no block is shared
        s.add(request(name, 60, client="a", max_tokens=4))
    step(s)
    s.add(request("b", 72, client="b", max_tokens=4))  # needs 5 blocks
    given, _ = step(s)
    assert given == {"b": 72, "p": 1, "q": 1}
    s.add(request("c", 200, client="c", max_tokens=4))  # does not fit beside one of "a"
    before = s.stats().num_preemptions
    step(s)
    assert s.stats().num_preemptions == before
    s.add(request("d", 8, client="d", max_tokens=4))
    assert "d" in step(s)[0]  # "c" keeps out nobody


def test_a_large_prompt_takes_few_blocks_of_others() -> None:
    s = make(num_blocks=16, seqs=8, budget=300)
    for name in "pqrstuvw":
        s.add(request(name, 29, client="a", max_tokens=3))
    step(s)
    s.add(request("b", 140, client="b"))  # needs 9 blocks, more than the others would keep
    s.add(request("c", 140, client="c"))
    step(s)
    assert holders(s) == {"a": 8}
    step(s)
    step(s)
    assert s.running.request_ids == ["b"]  # in its turn


def test_long_contexts_yield_blocks_to_short_ones() -> None:
    s = make(num_blocks=64, seqs=16, budget=999)
    for name in "pqr":
        s.add(request(name, 330, client="a", max_tokens=200))
    step(s)
    for number in range(12):
        s.add(request(f"{number}", 20, client="b", max_tokens=100))
    for _ in range(8):
        step(s)
    assert holders(s) == {"a": 2, "b": 8}
    assert s.stats().num_preemptions == 1
    assert s.requests["r"].num_preemptions == 1


def test_a_client_keeps_its_only_request() -> None:
    s = make(num_blocks=64, seqs=16, budget=999)
    s.add(request("p", 980, client="a", max_tokens=20))
    for number in range(4):
        s.add(request(f"{number}", 8, client="b", max_tokens=100))
    for _ in range(15):
        step(s)
    assert s.stats().num_preemptions > 0
    assert s.requests["p"].num_preemptions == 0


def test_whoever_holds_far_more_blocks_leaves_when_they_are_short() -> None:
    s = make(num_blocks=64, seqs=16, budget=999)
    for name in "pqr":
        s.add(request(name, 290, client="a", max_tokens=200))
    for name in "xyz":
        s.add(request(name, 30, client="b", max_tokens=100))
    step(s)
    while not s.stats().num_preemptions:
        step(s)
    assert holders(s) == {"a": 2, "b": 3}
    assert s.requests["r"].status is RequestStatus.PREEMPTED


def test_shared_blocks_count_once() -> None:
    s = make(num_blocks=32, seqs=16, budget=999)
    for number in range(2):  # 20 blocks; 38 if each had its own
        s.add(request(f"p{number}", 290, client="a", max_tokens=200))
    for name in "xyz":
        s.add(request(name, 60, client="b", max_tokens=100))
    step(s)
    while not s.stats().num_preemptions:
        step(s)
    assert holders(s) == {"a": 2, "b": 2}


def test_what_is_in_vain_is_tried_again_only_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = make(num_blocks=32, seqs=8, budget=300)
    for number in range(8):
        s.add(request(f"{'pqrstuvw'[number]}", 40, client="a", max_tokens=100))
    step(s)
    tries, victims = 0, s._seats._victims

    def counted(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        return victims(*args)

    monkeypatch.setattr(s._seats, "_victims", counted)
    s.add(request("big", 480, client="b"))  # fits only without any of "a"
    for _ in range(5):
        step(s)
    assert (tries, holders(s)) == (1, {"a": 8})
    assert not s._may_admit()
    s.abort(["p"])
    step(s)
    assert tries == 2


def test_the_longest_prefix_decides_where_it_is_asked_to() -> None:
    s = flooded(policy="lpm")
    s.add(request("b0", 8, client="b"))
    step(s)
    assert holders(s) == {"a": 8}


def test_an_adapter_that_is_one_too_many_keeps_out_no_other_client() -> None:
    limits = SchedulerConfig(1000, 4, 64, max_loras=1)
    s = Scheduler(limits, CacheConfig(BLOCK, 64))
    for number in range(4):
        s.add(adapted(f"a{number}", 1, client="a", max_tokens=9))
    step(s)
    s.add(adapted("b0", 2, client="b"))
    step(s)
    assert holders(s) == {"a": 4}
    s.add(adapted("c0", 1, client="c"))
    step(s)
    assert holders(s) == {"a": 3, "c": 1}


def test_new_clients_that_keep_coming_do_not_keep_out_a_second_request() -> None:
    s = make(seqs=4, budget=200)
    for number in range(2):
        s.add(request(f"h{number}", 8, client="h", max_tokens=900))
    s.add(request("x0", 8, client="x", max_tokens=900))
    step(s)
    for number in range(4 * REACH):
        s.add(request(f"n{2 * number}", 8, client=f"n{2 * number}", max_tokens=1))
        s.add(request(f"n{2 * number + 1}", 8, client=f"n{2 * number + 1}", max_tokens=1))
        if number == 1:
            s.add(request("x1", 8, client="x"))
        step(s)
        if "x1" in s.running.request_ids:
            break
    assert 1 < number <= REACH + 4


def test_a_full_batch_without_other_clients_is_still_quiet() -> None:
    s = flooded()
    step(s)
    assert not s._may_admit()
    s.add(request("b0", 8, client="b"))
    assert s._may_admit()
