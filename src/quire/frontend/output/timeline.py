"""Timelines of sequences: for the dashboard, for traces, and for later questions.

A timeline stores the few events that the core reports. Intervals and texts are derived on demand.
Decoding adds no events: it is the interval between two of them.
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
"""Most stored timelines of ended sequences."""
MAX_EVENTS = 128
"""Most events of a timeline; beyond, adjacent chunks are merged, then old events are dropped."""

SpanKind = Literal["images", "queue", "encode", "prefill", "decode", "preempted", "load"]
Span = tuple[SpanKind, float, float | None, int]
"""Kind, start, end (None: not yet), and tokens: computed in a chunk, generated while decoding (with
the first one), loaded, or those of images that the front end prepared or the tower read."""


class Lane(msgspec.Struct):
    """A sequence's life as intervals; times are on the monotonic clock."""

    id: str
    arrival: float
    state: Literal["queued", "running", "finished"]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    spans: list[Span]


class TimelineEvent(msgspec.Struct):
    """One event in words."""

    t: float
    kind: str
    tokens: int
    text: str


class _Noted(NamedTuple):
    """A `RequestEvent`, and how many tokens were generated when it was reported."""

    time: float
    kind: EventKind
    tokens: int
    end: float
    given: int


class Timeline:
    """The events of one sequence since its arrival.

    Attributes:
        id: the sequence's name; the request's id if n is 1.
        core_id: the core's number for the sequence.
        metrics: the request's, shared by its n sequences.
        finished: when it ended; None while it runs.
    """

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
        self._cached_tokens: int | None = None
        self._events: list[_Noted] = []
        self._sequence: SequenceState | None = sequence
        self._output_tokens = 0
        if request.prepared is not None:
            begun, ended = request.prepared
            rows = sum(image.rows for image in request.children[0].inputs.images)
            self.note(RequestEvent(core_id, "images", begun, rows, ended))

    @property
    def arrival(self) -> float:
        return self.metrics.arrival_time

    @property
    def output_tokens(self) -> int:
        return self._sequence.num_tokens if self._sequence else self._output_tokens

    @property
    def cached_tokens(self) -> int:
        """Return the prompt tokens found in the cache at the first admission."""
        return self._cached_tokens or 0

    @property
    def state(self) -> Literal["queued", "running", "finished"]:
        if self.finished is not None:
            return "finished"
        # Work changes no state, and may be reported after a preemption.
        last = next((e.kind for e in reversed(self._events) if not e.end), None)
        return "running" if last == "admitted" else "queued"

    def note(self, event: RequestEvent) -> None:
        noted = _Noted(event.time, event.kind, event.tokens, event.end, self.output_tokens)
        self._events.append(noted)
        if event.kind == "admitted" and self._cached_tokens is None:
            self._cached_tokens = event.tokens
        if len(self._events) > MAX_EVENTS:
            self._shorten()

    def follow(self, sequence: SequenceState) -> None:
        """Read the tokens from another sequence state from now on."""
        self._sequence = sequence

    def end(self, now: float) -> None:
        """Store the end of the sequence, and release its text."""
        assert self._sequence is not None
        self._output_tokens = self._sequence.num_tokens
        self.finish_reason = self._sequence.finish_reason
        self.finished = now
        self._sequence = None

    def lane(self) -> Lane:
        """Return the sequence's life until now as intervals."""
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
        """Return the intervals, without gaps except between two steps."""
        spans: list[Span] = []
        kind: SpanKind = "queue"
        start, tokens, given, missing = self.arrival, 0, 0, 0
        for event in self._in_order():
            if event.kind == "prefill":
                spans.append(("prefill", event.time, event.end, event.tokens))
                missing -= event.tokens
                kind, start = "prefill" if missing > 0 else "decode", event.end
                continue
            if event.kind == "images" or event.kind == "encode":
                if kind != "prefill" and start < event.time:
                    spans.append((kind, start, event.time, tokens))
                start = max(start, event.time)  # a chunk before the image may be in the same step
                spans.append((event.kind, start, event.end, event.tokens))
                start = event.end
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
        """Return all events in words, in order."""
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
        """Return seconds of the request's phases, as in `/metrics`; None if not known yet."""
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
        """Return the events by time: if steps overlap, the later one may be reported first."""
        return sorted(self._events, key=lambda event: event.time)

    def _shorten(self) -> None:
        """Merge adjacent chunks; if too many events remain, drop old ones."""
        events: list[_Noted] = []
        single = False  # merge in pairs, so that the chart stays even
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
    """Timelines of all running sequences, and of the last `MAX_FINISHED` that ended."""

    def __init__(self) -> None:
        self._alive: dict[str, Timeline] = {}
        self._finished: deque[Timeline] = deque(maxlen=MAX_FINISHED)

    def begin(self, timeline: Timeline) -> Timeline:
        """Add the timeline of a sequence that runs, and return it."""
        self._alive[timeline.core_id] = timeline
        return timeline

    def retry(
        self,
        core_id: str,
        before: Timeline,
        request: ProcessedRequest,
        sequence: SequenceState,
        now: float,
    ) -> Timeline:
        """Return the timeline of a sequence that another core begins again, or goes on with."""
        timeline = self._alive.get(core_id)
        if timeline is None:  # this sequence had ended, others of its request had not
            again = Timeline(core_id, before.id, request, sequence, before.metrics)
            timeline = self.begin(again)
        timeline.note(RequestEvent(core_id, "retried", now))
        timeline.follow(sequence)
        return timeline

    def note(self, event: RequestEvent) -> None:
        if timeline := self._alive.get(event.request_id):  # it may be aborted by now
            timeline.note(event)

    def end(self, core_id: str, now: float) -> None:
        """Store the end of a sequence."""
        timeline = self._alive.pop(core_id)
        timeline.end(now)
        self._finished.append(timeline)

    def name(self, core_id: str) -> str:
        """Return the name of the core's sequence; the number itself if it is unknown."""
        found = self._alive.get(core_id) or next(
            (timeline for timeline in reversed(self._finished) if timeline.core_id == core_id), None
        )
        return core_id if found is None else found.id

    def find(self, wanted: Callable[[Timeline], bool]) -> list[Timeline]:
        """Return the timelines for which `wanted` holds, the newest first."""
        found = filter(wanted, [*self._finished, *self._alive.values()])
        return sorted(found, key=lambda timeline: timeline.arrival, reverse=True)

    def recent(self, since: float, limit: int) -> list[Timeline]:
        """Return at most `limit` timelines, sorted by arrival.

        Running sequences are chosen first, then waiting ones, then those that ended after `since`,
        the latest first.
        """
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
    "images": lambda e: f"prepared images of {_tokens(e.tokens)} in {_ms(e)}",
    "encode": lambda e: f"the tower read images of {_tokens(e.tokens)} in {_ms(e)}",
    "load": lambda e: f"loading {_tokens(e.tokens)} from host memory",
    "load_failed": lambda _: "its blocks could not be loaded from host memory; it waits again",
    "admitted": lambda e: f"admitted, with {_tokens(e.tokens)} in the KV cache",
    "resumed": lambda e: f"resumed, with {_tokens(e.tokens)} in the KV cache",
    "prefill": lambda e: f"computed {_tokens(e.tokens)} in {_ms(e)}",
    "retried": lambda _: "the engine core was lost; the request goes on in another one",
    "preempted": lambda e: f"preempted after {_tokens(e.given)}: others needed its KV blocks",
}


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _ms(event: _Noted) -> str:
    return f"{1e3 * (event.end - event.time):.1f} ms"


def _between(start: float, end: float) -> float | None:
    return end - start if start and end else None
