"""Events of requests for the front end's timelines.

Decoding is no event, so timelines cost nothing in steps that only decode.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.batch import ModelOutput
from quire.core.messages import EventKind, RequestEvent, StepOutputs
from quire.core.request import Request
from quire.scheduler.running import Admitted
from quire.scheduler.steps import InFlight


class Events:
    """Collects events until they are attached to a step's outputs.

    Attributes:
        now: the time of new events, on the scheduler's clock.
    """

    def __init__(self) -> None:
        self.now: float
        self._noted: list[RequestEvent] = []
        self._last_end = 0.0
        self._reads_since = 0.0

    def attach(self, outputs: StepOutputs) -> None:
        """Append all events since the last call to `outputs`."""
        if self._noted:
            outputs.events, self._noted = [*outputs.events, *self._noted], []

    def note(self, kind: EventKind, request: Request, tokens: int = 0) -> None:
        self._noted.append(RequestEvent(request.request_id, kind, self.now, tokens))

    def admitted(self, admitted: Iterable[Admitted]) -> None:
        for new in admitted:
            self.note("admitted", new.request, new.num_computed)

    def computed(self, flight: InFlight, result: ModelOutput, end: float) -> None:
        """Note the prompt chunks of a computed step, and the images that it has read.

        A step that was scheduled while another ran began at the end of that one.
        """
        start = max(flight.begun, self._last_end)
        self._last_end = end
        step, read = flight.step, result.encoded_images
        if (ahead := step.read_ahead) is not None:
            if ahead.image.pixels:  # its first part
                self._reads_since = start
            if ahead.image.digest in read:
                rows = ahead.image.rows
                self._add(ahead.request_id, "encode", self._reads_since, rows, end)
        for row in flight.prefills:
            name, begun = step.request_ids[row], start
            count, first = (
                int(column[row]) for column in (step.num_scheduled_tokens, step.num_computed_tokens)
            )
            rows = sum(
                span.rows
                for span in (flight.requests[row].inputs.images if read else ())
                if span.digest in read and span.start < first + count and span.end > first
            )
            if rows:  # the tower reads before the text model computes
                begun = min(end, start + result.encode_seconds)
                self._add(name, "encode", start, rows, begun)
            self._add(name, "prefill", begun, count, end)

    def _add(self, name: str, kind: EventKind, start: float, tokens: int, end: float) -> None:
        self._noted.append(RequestEvent(name, kind, start, tokens, end))
