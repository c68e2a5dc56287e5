"""How many adapters a step has, and who may overtake one who waits for a place among them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.lora import LoRARequest
from quire.core.request import Request, RequestStatus
from quire.scheduler.queue import REACH
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, request, step


def make(max_loras: int, policy: Any = "fcfs", seqs: int = 8) -> Scheduler:
    limits = SchedulerConfig(1000, seqs, 64, policy, max_loras=max_loras)
    return Scheduler(limits, CacheConfig(BLOCK, 64))


def adapted(name: str, adapter: int, **params: Any) -> Request:
    made = request(name, 4, **{"max_tokens": 2, **params})
    wanted = LoRARequest(f"l{adapter}", adapter, "", bytes([adapter]))
    made.inputs = replace(made.inputs, options=replace(made.options, lora_request=wanted))
    return made


def test_one_adapter_too_many_waits_and_the_others_do_not() -> None:
    s = make(2)
    for new in (adapted("a", 1), adapted("b", 2), adapted("c", 3), adapted("d", 1)):
        s.add(new)
    s.add(request("e", 4))
    assert set(step(s)[0]) == {"a", "b", "d", "e"}
    assert step(s)[0].keys() == {"a", "b", "d", "e"}  # the last tokens of those with adapters
    assert "c" in step(s)[0]
    while s.has_unfinished():
        step(s)
    assert s.kv.pool.num_used == 0


def test_one_who_waits_is_overtaken_by_few() -> None:
    s = make(1, seqs=3)  # one of its requests, which take three steps, is always there
    s.add(adapted("a", 1, max_tokens=3))
    s.add(adapted("b", 2))
    order: list[str] = []
    number = 0
    while "b" not in order:
        s.add(adapted(f"a{(number := number + 1)}", 1, max_tokens=3))
        order += [name for name in step(s)[0] if name not in order]
        assert number < 3 * REACH
    assert REACH - 2 <= order.index("b") <= REACH


def test_one_who_waits_can_be_aborted() -> None:
    s = make(1)
    s.add(adapted("a", 1, max_tokens=4))
    s.add(adapted("b", 2))
    step(s)
    assert s.requests["b"].status is RequestStatus.WAITING
    s.abort(["b"])
    assert set(step(s)[0]) == {"a"}
    s.check_integrity()


def test_a_higher_priority_takes_the_place_of_an_adapter() -> None:
    s = make(1, policy="priority")
    s.add(adapted("a", 1, priority=1, max_tokens=4))
    s.add(request("e", 4, priority=1))
    step(s)
    s.add(adapted("b", 2, priority=0))
    assert step(s)[0] == {"b": 4}  # e went, too, and waits for the next step
    assert s.requests["a"].status is RequestStatus.PREEMPTED
    while s.has_unfinished():
        step(s)
