"""From the core's events to a lane and a story."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.messages import CoreOutput, EventKind, RequestEvent, StepOutputs
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams
from quire.frontend.output.timeline import MAX_EVENTS, MAX_FINISHED, Timeline, Timelines
from tests.unit.engine.fakes import NamedOutputs, input_processor


class Bench:
    """An output processor, fed by hand; requests have prompts of 8 tokens and arrive at 9."""

    def __init__(self) -> None:
        self.processor = NamedOutputs()
        self.input = input_processor()

    @property
    def timelines(self) -> Timelines:
        return self.processor.timelines

    def add(self, request_id: str, arrival: float = 9.0, **params: Any) -> None:
        wanted = SamplingParams(**params)
        prompt = list(range(8))
        self.processor.add(self.input.process(request_id, prompt, wanted, arrival_time=arrival))

    def step(self, now: float, *events: RequestEvent, **tokens: int) -> None:
        """One in which each of `tokens` was given so many."""
        outputs = [CoreOutput(k, [65] * n, scheduled_time=10.0) for k, n in tokens.items()]
        self.processor.process(StepOutputs(outputs, None, now, events=list(events)))

    def finish(self, now: float, request_id: str) -> None:
        output = CoreOutput(request_id, [65], FinishReason.LENGTH)
        self.processor.process(StepOutputs([output], None, now))

    def get(self, sequence_id: str) -> Timeline:
        [found] = self.timelines.find(lambda timeline: timeline.id == sequence_id)
        return found


def event(
    kind: EventKind, time: float, tokens: int = 0, end: float = 0.0, name: str = "r"
) -> RequestEvent:
    return RequestEvent(name, kind, time, tokens, end)


def test_a_life() -> None:
    bench = Bench()
    bench.add("r")
    lane = bench.get("r").lane()
    assert (lane.state, lane.spans) == ("queued", [("queue", 9.0, None, 0)])
    bench.step(11.0, event("admitted", 10.0, 2), event("prefill", 10.0, 4, 11.0))
    lane = bench.get("r").lane()
    assert lane.state == "running"
    assert lane.spans[1:] == [("prefill", 10.0, 11.0, 4), ("prefill", 11.0, None, 0)]
    bench.step(12.0, event("prefill", 11.5, 2, 12.0), r=1)
    bench.step(13.0, r=1)
    assert bench.get("r").lane().spans[-1] == ("decode", 12.0, None, 2)
    bench.step(14.0, event("preempted", 13.5, 10))
    lane = bench.get("r").lane()
    assert lane.state == "queued"
    assert lane.spans[-1] == ("preempted", 13.5, None, 0)
    bench.step(16.0, event("admitted", 15.0, 0), event("prefill", 15.0, 10, 16.0), r=1)
    bench.finish(17.0, "r")
    found = bench.get("r")
    assert found.lane().spans == [
        ("queue", 9.0, 10.0, 0),
        ("prefill", 10.0, 11.0, 4),
        ("prefill", 11.5, 12.0, 2),
        ("decode", 12.0, 13.5, 2),
        ("preempted", 13.5, 15.0, 0),
        ("prefill", 15.0, 16.0, 10),
        ("decode", 16.0, 17.0, 2),
    ]
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (8, 4, 2)
    assert [line.kind for line in found.story()] == [
        "arrived",
        "admitted",
        "prefill",
        "prefill",
        "first_token",
        "preempted",
        "resumed",
        "prefill",
        "finished",
    ]
    assert found.story()[-1].text == "ended (length) after 4 tokens"
    assert found.durations() == {
        "ttft": 3.0,
        "e2e": 8.0,
        "queue": 1.0,
        "prefill": 2.0,
        "decode": 5.0,
        "inference": 7.0,
    }


def test_images_are_prepared_and_read() -> None:
    bench = Bench()
    asked = bench.input.process("r", list(range(8)), SamplingParams(), arrival_time=9.0)
    bench.processor.add(replace(asked, prepared=(9.25, 9.5)))
    assert bench.get("r").state == "queued"
    bench.step(12.0, event("encode", 10.0, 3, 11.0))
    assert bench.get("r").spans()[-1] == ("queue", 11.0, None, 0)
    # The chunk before the second image is of the step that begins to read this.
    bench.step(14.0, event("admitted", 12.0, 2), event("prefill", 12.0, 2, 13.0))
    bench.step(14.5, event("encode", 12.0, 3, 14.5))
    bench.step(16.0, event("prefill", 15.0, 4, 16.0), r=1)
    found = bench.get("r")
    assert found.lane().spans == [
        ("queue", 9.0, 9.25, 0),
        ("images", 9.25, 9.5, 0),
        ("queue", 9.5, 10.0, 0),
        ("encode", 10.0, 11.0, 3),
        ("queue", 11.0, 12.0, 0),
        ("prefill", 12.0, 13.0, 2),
        ("encode", 13.0, 14.5, 3),
        ("prefill", 15.0, 16.0, 4),
        ("decode", 16.0, None, 1),
    ]
    assert (found.state, found.cached_tokens) == ("running", 2)
    texts = [line.text for line in found.story()]
    assert texts[1] == "prepared images of 0 tokens in 250.0 ms"
    assert texts[2] == "the tower read images of 3 tokens in 1000.0 ms"


def test_blocks_that_come_from_host_memory() -> None:
    bench = Bench()
    bench.add("r")
    bench.step(11.0, event("load", 10.0, 4))
    assert bench.get("r").lane().spans[-1] == ("load", 10.0, None, 4)
    bench.step(12.0, event("load_failed", 11.0))
    assert bench.get("r").lane().spans[-1] == ("queue", 11.0, None, 0)
    bench.step(13.0, event("load", 12.0, 4))
    bench.step(14.0, event("admitted", 13.0, 4), event("prefill", 13.0, 4, 14.0), r=1)
    assert [span[0] for span in bench.get("r").spans()] == [
        "queue",
        "load",
        "queue",
        "load",
        "prefill",
        "decode",
    ]
    assert bench.get("r").state == "running"


def test_who_is_aborted_in_line_waited_until_then() -> None:
    bench = Bench()
    bench.add("r")
    bench.processor.abort("r", 11.0)
    lane = bench.get("r").lane()
    assert (lane.state, lane.spans) == ("finished", [("queue", 9.0, 11.0, 0)])
    assert bench.get("r").durations()["ttft"] is None
    bench.step(12.0, event("admitted", 11.5))  # was on its way meanwhile


def test_each_of_n_sequences_has_its_own() -> None:
    bench = Bench()
    bench.add("r", n=2)
    found = bench.timelines.find(lambda timeline: timeline.request_id == "r")
    assert [timeline.id for timeline in found] == ["r_0", "r_1"]


def test_a_chunk_that_is_told_late_keeps_its_place() -> None:
    """A request was preempted for the step behind the one that computed its chunk."""
    bench = Bench()
    bench.add("r")
    bench.step(
        12.0,
        event("admitted", 10.0),
        event("preempted", 11.5, 4),
        event("prefill", 11.0, 4, 12.0),
    )
    assert [span[0] for span in bench.get("r").spans()] == [
        "queue",
        "prefill",
        "prefill",
        "preempted",
    ]
    assert bench.get("r").state == "queued"


def test_long_stories_are_shortened() -> None:
    bench = Bench()
    bench.add("r")
    bench.step(10.0, event("admitted", 10.0))
    for i in range(1000):
        bench.step(11.0 + i, event("prefill", 10.0 + i, 1, 11.0 + i))
    found = bench.get("r")
    chunks = [span for span in found.spans() if span[0] == "prefill" and span[2] is not None]
    assert len(chunks) <= MAX_EVENTS
    assert sum(span[3] for span in chunks) == 1000
    assert found.num_dropped == 0
    for i in range(1000):
        bench.step(2000.0 + i, event("preempted", 2000.0 + i), event("admitted", 2000.5 + i))
    assert len(found.spans()) <= MAX_EVENTS + 1
    assert found.num_dropped > 0
    assert found.cached_tokens == 0
    assert found.spans()[0] == ("queue", 9.0, 10.0, 0)


def test_the_latest_thousand_are_kept() -> None:
    bench = Bench()
    for i in range(MAX_FINISHED + 5):
        bench.add(str(i), arrival=float(i))
        bench.finish(i + 1.0, str(i))
    found = bench.timelines.find(lambda _: True)
    assert [timeline.id for timeline in found] == [
        str(i) for i in reversed(range(5, MAX_FINISHED + 5))
    ]


def test_who_gets_a_lane() -> None:
    bench = Bench()
    for i in range(4):
        bench.add(f"ended-{i}", arrival=float(i))
        bench.finish(i + 10.0, f"ended-{i}")
    bench.add("waits", arrival=20.0)
    bench.add("runs", arrival=21.0)
    bench.step(22.0, event("admitted", 21.5, name="runs"))

    def lanes(since: float, limit: int) -> list[str]:
        return [timeline.id for timeline in bench.timelines.recent(since, limit)]

    assert lanes(11.0, 10) == ["ended-1", "ended-2", "ended-3", "waits", "runs"]
    assert lanes(11.0, 3) == ["ended-3", "waits", "runs"]
    assert lanes(11.0, 1) == ["runs"]
    assert lanes(99.0, 9) == ["waits", "runs"]
