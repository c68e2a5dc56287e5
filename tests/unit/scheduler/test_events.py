"""What the front end is told beside tokens: when something happens, and only then."""

from __future__ import annotations

from quire.core.batch import ModelOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.core.images import ImageSpan
from quire.core.messages import RequestEvent, StepOutputs
from quire.core.options import RequestInputs
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, make, request, sampled


def events(
    s: Scheduler, begin: float, failed: list[int] | None = None
) -> list[tuple[str, str, float, int, float]]:
    """Those of a step that takes a second."""
    batch = s.schedule(begin)
    outputs: StepOutputs = s.update(
        batch, sampled(s, batch, 5, failed_loads=failed or []), begin + 1
    )
    return [_plain(event) for event in outputs.events]


def _plain(event: RequestEvent) -> tuple[str, str, float, int, float]:
    return event.request_id, event.kind, event.time, event.tokens, event.end


def test_a_prompt_in_chunks_and_then_nothing_more() -> None:
    s = make(budget=64)
    s.add(request("a", 100))
    assert events(s, 0.5) == [("a", "admitted", 0.5, 0, 0.0), ("a", "prefill", 0.5, 64, 1.5)]
    assert events(s, 3.0) == [("a", "prefill", 3.0, 36, 4.0)]
    assert events(s, 5.0) == events(s, 7.0) == []
    s.add(request("a2", 100))
    admitted, prefill = events(s, 9.0)
    assert admitted == ("a2", "admitted", 9.0, 96, 0.0)
    assert prefill == ("a2", "prefill", 9.0, 4, 10.0)


def test_a_step_that_yields_nothing_makes_no_prompt_of_the_next() -> None:
    s = make()
    s.add(request("a", 4))
    assert [event[1] for event in events(s, 1.0)] == ["admitted", "prefill"]
    behind = [s.schedule(3.0), s.schedule(3.0)]
    for batch, row in zip(behind, ([], [5]), strict=True):
        assert s.update(batch, ModelOutput(token_columns([row])), 4.0).events == []


def test_a_preemption_and_the_way_back() -> None:
    s = make(num_blocks=4, seqs=2, enable_prefix_caching=False)
    s.add(request("a", 31, max_tokens=8))
    s.add(request("b", 31, max_tokens=8))
    assert [e[:2] for e in events(s, 1.0)] == [
        ("a", "admitted"),
        ("b", "admitted"),
        ("a", "prefill"),
        ("b", "prefill"),
    ]
    assert events(s, 3.0) == []
    assert events(s, 5.0) == [("b", "preempted", 5.0, 32, 0.0)]
    told = []
    for begin in range(7, 40, 2):
        told += events(s, float(begin))
    assert [e[1] for e in told if e[0] == "b"] == ["admitted", "prefill"]
    assert [e[3] for e in told if e[0] == "b"] == [0, 33]


def test_a_preemption_tells_the_tokens_of_its_own_request() -> None:
    s = make(num_blocks=3, seqs=2, enable_prefix_caching=False)
    s.add(request("a", 8))
    s.add(request("b", 31, max_tokens=8))
    told = [event for begin in (1.0, 3.0, 5.0) for event in events(s, begin)]
    assert told[-1] == ("b", "preempted", 5.0, 32, 0.0)


def test_blocks_that_are_loaded_or_lost() -> None:
    cache = CacheConfig(BLOCK, 8, tiers=TierConfig(num_offload_slots=8))
    s = Scheduler(SchedulerConfig(1000, 4, 200), cache)
    for name, length in (("a1", 7 * BLOCK), ("b", 7 * BLOCK + 8)):
        s.add(request(name, length, max_tokens=1))
        events(s, 1.0)
    s.add(request("a2", 7 * BLOCK, max_tokens=2))
    batch = s.schedule(3.0)
    lost = [load.block for load in batch.block_copies.loads]
    outputs = s.update(batch, sampled(s, batch, 5, failed_loads=lost), 4.0)
    assert [_plain(e) for e in outputs.events] == [
        ("a2", "load", 3.0, 6 * BLOCK, 0.0),
        ("a2", "load_failed", 4.0, 0, 0.0),
    ]
    told = events(s, 5.0)
    assert [e[1] for e in told] == ["admitted", "prefill"]


def test_a_chunk_behind_another_step_begins_when_that_one_ends() -> None:
    s = make(budget=64)
    s.add(request("a", 100))
    first = s.schedule(1.0)
    second = s.schedule(1.5)
    outputs = s.update(first, sampled(s, first, 5), 3.0)
    assert _plain(outputs.events[-1]) == ("a", "prefill", 1.0, 64, 3.0)
    outputs = s.update(second, sampled(s, second, 5), 4.0)
    assert [_plain(e) for e in outputs.events] == [("a", "prefill", 3.0, 36, 4.0)]


def test_images_that_a_chunk_reads_come_before_it() -> None:
    s = make(budget=16)
    spans = tuple(
        ImageSpan(at, 4, name, None, (8, 8), b"a") for at, name in ((2, b"x"), (20, b"y"))
    )
    asked = request("a", 30)
    asked.inputs = RequestInputs(images=spans)
    s.add(asked)
    s.add(request("b", 30))
    found = []
    for begin, read in ((1.0, b"x"), (3.0, b"y"), (5.0, b"y")):
        batch = s.schedule(begin)
        result = sampled(s, batch, 5, encoded_images=[read], encode_seconds=0.25)
        found += map(_plain, s.update(batch, result, begin + 1).events)
    assert [e for e in found if e[0] == "a"] == [
        ("a", "admitted", 1.0, 0, 0.0),
        ("a", "encode", 1.0, 4, 1.25),
        ("a", "prefill", 1.25, 16, 2.0),
        ("a", "encode", 3.0, 4, 3.25),
        ("a", "prefill", 3.25, 14, 4.0),
    ]
    assert {e[1] for e in found if e[0] == "b"} == {"admitted", "prefill"}


def test_an_image_that_several_steps_read_is_one_event() -> None:
    s = make()
    s.add(request("text", 4, max_tokens=50))
    events(s, 1.0)
    asked = request("a", 30)
    asked.inputs = RequestInputs(images=(ImageSpan(0, 4, b"x", None, (8, 8), b"a"),))
    s.add(asked)
    found = []
    for begin, read in ((3.0, False), (5.0, True), (7.0, False)):
        batch = s.schedule(begin)
        digest = b"x" if read else None
        result = sampled(s, batch, 5, read_ahead=digest, encoded_images=[b"x"] if read else [])
        found += map(_plain, s.update(batch, result, begin + 1).events)
    assert found == [
        ("a", "encode", 3.0, 4, 6.0),
        ("a", "admitted", 7.0, 0, 0.0),
        ("a", "prefill", 7.0, 30, 8.0),
    ]


def test_a_step_behind_a_first_token_that_did_not_come_prefills_too() -> None:
    s = make()
    s.add(request("a", 4))
    first, second = s.schedule(1.0), s.schedule(1.5)
    s.update(first, ModelOutput(token_columns([[]])), 2.0)
    outputs = s.update(second, ModelOutput(token_columns([[5]])), 3.0)
    assert [_plain(e) for e in outputs.events] == [("a", "prefill", 2.0, 1, 3.0)]


def test_a_failed_step_tells_who_lost_what() -> None:
    s = make(budget=64)
    s.add(request("a", 100))
    s.add(request("b", 10))
    first, second = s.schedule(1.0), s.schedule(1.5)
    outputs = s.fail(first, "broken", 2.0)
    assert _plain(outputs.events[-1])[:3] == ("b", "preempted", 2.0)
    assert s.schedule(3.0).step > second.step  # which is dropped
