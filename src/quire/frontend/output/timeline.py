"""What happened to each sequence and when: for the dashboard, for traces, and to ask afterwards.

A timeline keeps the few events that the core tells of; intervals and texts are made of them when
somebody looks. Decoding adds nothing to it: it is what lies between two events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from quire.core.messages import EventKind, RequestEvent
from quire.core.outputs import RequestMetrics
from quire.frontend.input.input_processor import ProcessedRequest
from quire.frontend.output.sequence import SequenceState

MAX_FINISHED = 1000
"""Timelines that are kept after their end."""
MAX_EVENTS = 128
"""Of a timeline; beyond them neighbouring chunks are told as one, and then old events dropped."""

SpanKind = Literal["queue", "prefill", "decode", "preempted", "load"]
Span = tuple[SpanKind, float, float | None, int]
"""What it did, from when, until when (None: it still does), and how many tokens: computed in a
chunk, given while it decoded (the first one counts there), or loaded."""


class Lane(msgspec.Struct):
    """A sequence's life as intervals; moments are on the monotonic clock."""

    id: str
    arrival: float
    state: Literal["queued", "running", "finished"]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    spans: list[Span]


class TimelineEvent(msgspec.Struct):
    """One line of the story."""

    t: float
    kind: str
    tokens: int
    text: str


class _Noted(NamedTuple):
    """A `RequestEvent`, and how many tokens had been given when it was told."""

    time: float
    kind: EventKind
    tokens: int
    end: float
    given: int


class Timeline:
    """One sequence, from its arrival on.

    Attributes:
        id: the sequence's name; the request's own where n is 1.
        core_id: the number by which the core knows the sequence.
        metrics: the request's, shared by its n sequences.
        finished: when it ended; None while it runs.
        num_dropped: events that are not known any more.
    """

    __slots__ = (
        "_events",
        "_output_tokens",
        "_sequence",
        "core_id",
        "finish_reason",
        "finished",
        "id",
        "metrics",
        "num_dropped",
        "prompt_tokens",
        "request_id",
    )

    def __init__(
        self,
        core_id: str,
        name: str,
        request: ProcessedRequest,
        sequence: SequenceState,
        metrics: RequestMetrics,
    ) -> None:
        self.id, self.core_id = name, core_id
        self.request_id = request.request_id
        self.prompt_tokens = len(request.prompt_token_ids)
        self.metrics = metrics
        self.finished: float | None = None
        self.finish_reason: str | None = None
        self.num_dropped = 0
        self._events: list[_Noted] = []
        self._sequence: SequenceState | None = sequence
        self._output_tokens = 0

    @property
    def arrival(self) -> float:
        return self.metrics.arrival_time

    @property
    def output_tokens(self) -> int:
        return self._sequence.num_tokens if self._sequence else self._output_tokens

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were there when it was first admitted."""
        return next((e.tokens for e in self._events if e.kind == "admitted"), 0)

    @property
    def state(self) -> Literal["queued", "running", "finished"]:
        if self.finished is not None:
            return "finished"
        # A chunk changes nothing, and may be told of after a preemption.
        last = next((e.kind for e in reversed(self._events) if e.kind != "prefill"), None)
        return "running" if last == "admitted" else "queued"

    def note(self, event: RequestEvent) -> None:
        noted = _Noted(event.time, event.kind, event.tokens, event.end, self.output_tokens)
        self._events.append(noted)
        if len(self._events) > MAX_EVENTS:
            self._shorten()

    def follow(self, sequence: SequenceState) -> None:
        """From now on this is its state."""
        self._sequence = sequence

    def end(self, now: float) -> None:
        """It has ended; keep what there is to tell, and not its text."""
        assert self._sequence is not None
        self._output_tokens = self._sequence.num_tokens
        self.finish_reason = self._sequence.finish_reason
        self.finished = now
        self._sequence = None

    def lane(self) -> Lane:
        """Its life as intervals, until now."""
        return Lane(
            self.id,
            self.arrival,
            self.state,
            self.prompt_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.spans(),
        )

    def spans(self) -> list[Span]:
        """Intervals that touch, but for the moments between two steps."""
        spans: list[Span] = []
        kind: SpanKind = "queue"
        start, tokens, given, missing = self.arrival, 0, 0, 0
        for event in self._in_order():
            if event.kind == "prefill":
                spans.append(("prefill", event.time, event.end, event.tokens))
                missing -= event.tokens
                kind, start = "prefill" if missing > 0 else "decode", event.end
                continue
            if kind == "decode":
                tokens, given = event.given - given, event.given
            spans.append((kind, start, event.time, tokens))
            start, tokens = event.time, 0
            match event.kind:
                case "load":
                    kind, tokens = "load", event.tokens
                case "load_failed" | "retried":
                    kind = "queue"
                case "preempted":
                    kind = "preempted"
                case "admitted":
                    kind = "prefill"
                    missing = self.prompt_tokens + event.given - event.tokens
        if kind == "decode":
            tokens = self.output_tokens - given
        spans.append((kind, start, self.finished, tokens))
        return spans

    def story(self) -> list[TimelineEvent]:
        """Every event in words, in order."""
        arrived = f"arrived with a prompt of {_tokens(self.prompt_tokens)}"
        lines = [TimelineEvent(self.arrival, "arrived", self.prompt_tokens, arrived)]
        seated = False
        for event in self._in_order():
            kind = "resumed" if event.kind == "admitted" and seated else event.kind
            seated |= event.kind == "admitted"
            text = _TEXTS[kind](event)
            lines.append(TimelineEvent(event.time, kind, event.tokens, text))
        if first := self.metrics.first_token_time:
            seconds = first - self.arrival
            text = f"first token, {seconds:.3f} s after arrival"
            lines.append(TimelineEvent(first, "first_token", 1, text))
        if self.finished is not None:
            text = f"ended ({self.finish_reason}) after {_tokens(self.output_tokens)}"
            lines.append(TimelineEvent(self.finished, "finished", self.output_tokens, text))
        return sorted(lines, key=lambda line: line.t)

    def durations(self) -> dict[str, float | None]:
        """Seconds of the request's parts, as `/metrics` counts them; None where not known yet."""
        m = self.metrics
        return {
            "ttft": _between(m.arrival_time, m.first_token_time),
            "e2e": _between(m.arrival_time, m.finished_time),
            "queue": _between(m.arrival_time, m.first_scheduled_time),
            "prefill": _between(m.first_scheduled_time, m.first_token_time),
            "decode": _between(m.first_token_time, m.last_token_time),
            "inference": _between(m.first_scheduled_time, m.last_token_time),
        }

    def _in_order(self) -> list[_Noted]:
        """Of steps that overlap, the later one may be told of first."""
        return sorted(self._events, key=lambda event: event.time)

    def _shorten(self) -> None:
        """Make room: neighbouring chunks become one; if there are none, old events go."""
        events: list[_Noted] = []
        single = False  # two by two, so that the picture stays even
        for event in self._events:
            if single and event.kind == events[-1].kind == "prefill":
                last = events[-1]
                events[-1] = last._replace(tokens=last.tokens + event.tokens, end=event.end)
                single = False
            else:
                events.append(event)
                single = True
        if len(events) > 0.75 * MAX_EVENTS:
            dropped = MAX_EVENTS // 2
            self.num_dropped += dropped
            del events[1 : 1 + dropped]
        self._events = events


class Timelines:
    """Of all sequences under way, and of the last `MAX_FINISHED` that ended."""

    def __init__(self) -> None:
        self._alive: dict[str, Timeline] = {}
        self._finished: deque[Timeline] = deque(maxlen=MAX_FINISHED)

    def begin(
        self,
        core_id: str,
        name: str,
        request: ProcessedRequest,
        sequence: SequenceState,
        metrics: RequestMetrics,
    ) -> Timeline:
        timeline = Timeline(core_id, name, request, sequence, metrics)
        self._alive[core_id] = timeline
        return timeline

    def retry(
        self,
        core_id: str,
        before: Timeline,
        request: ProcessedRequest,
        sequence: SequenceState,
        now: float,
    ) -> Timeline:
        """Return the timeline of a sequence that begins again with a new core."""
        timeline = self._alive.get(core_id)
        if timeline is None:  # it had ended, but not the others of its request
            timeline = self.begin(core_id, before.id, request, sequence, before.metrics)
        timeline.note(RequestEvent(core_id, "retried", now))
        timeline.follow(sequence)
        return timeline

    def note(self, event: RequestEvent) -> None:
        if timeline := self._alive.get(event.request_id):  # or it was aborted meanwhile
            timeline.note(event)

    def end(self, core_id: str, now: float) -> None:
        """A sequence has ended, as its state says."""
        timeline = self._alive.pop(core_id)
        timeline.end(now)
        self._finished.append(timeline)

    def name(self, core_id: str) -> str:
        """Return the name of a sequence that the core speaks of; its number if it is not known."""
        found = self._alive.get(core_id) or next(
            (timeline for timeline in reversed(self._finished) if timeline.core_id == core_id), None
        )
        return core_id if found is None else found.id

    def find(self, wanted: Callable[[Timeline], bool]) -> list[Timeline]:
        """All for which `wanted` holds, the newest first."""
        found = filter(wanted, [*self._finished, *self._alive.values()])
        return sorted(found, key=lambda timeline: timeline.arrival, reverse=True)

    def recent(self, since: float, limit: int) -> list[Timeline]:
        """At most `limit`, by arrival: those that run before those that wait, and these before
        those that ended after `since`, the latest first."""
        chosen = sorted(self._alive.values(), key=lambda timeline: timeline.state == "queued")
        chosen = chosen[:limit]
        for timeline in self._latest(since):
            if len(chosen) >= limit:
                break
            chosen.append(timeline)
        return sorted(chosen, key=lambda timeline: timeline.arrival)

    def _latest(self, since: float) -> Iterator[Timeline]:
        for timeline in reversed(self._finished):
            if timeline.finished is None or timeline.finished < since:
                return
            yield timeline


_TEXTS: dict[str, Callable[[_Noted], str]] = {
    "load": lambda e: f"{_tokens(e.tokens)} on the way back from host memory",
    "load_failed": lambda _: "its blocks did not come back from host memory; it waits again",
    "admitted": lambda e: f"admitted, with {_tokens(e.tokens)} in the KV cache",
    "resumed": lambda e: f"runs again, with {_tokens(e.tokens)} in the KV cache",
    "prefill": lambda e: f"computed {_tokens(e.tokens)} in {1e3 * (e.end - e.time):.1f} ms",
    "retried": lambda _: "the engine core was lost; it begins again with another",
    "preempted": lambda e: f"preempted after {_tokens(e.given)}: others needed its KV blocks",
}


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _between(start: float, end: float) -> float | None:
    return end - start if start and end else None
