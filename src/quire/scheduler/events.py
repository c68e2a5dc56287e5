"""Events of requests for the front end's timelines.

Decoding is no event, so timelines cost nothing in steps that only decode.
"""

from __future__ import annotations

from collections.abc import Iterable

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

    def attach(self, outputs: StepOutputs) -> None:
        """Append all events since the last call to `outputs`."""
        if self._noted:
            outputs.events, self._noted = [*outputs.events, *self._noted], []

    def note(self, kind: EventKind, request: Request, tokens: int = 0) -> None:
        self._noted.append(RequestEvent(request.request_id, kind, self.now, tokens))

    def admitted(self, admitted: Iterable[Admitted]) -> None:
        for new in admitted:
            self.note("admitted", new.request, new.num_computed)

    def computed(self, flight: InFlight, end: float) -> None:
        """Note the prompt chunks of a computed step.

        A step that was scheduled while another ran began at the end of that one.
        """
        if flight.prefills:
            start = max(flight.begun, self._last_end)
            step = flight.step
            counts = step.num_scheduled_tokens[flight.prefills].tolist()
            for row, count in zip(flight.prefills, counts, strict=True):
                name = step.request_ids[row]
                self._noted.append(RequestEvent(name, "prefill", start, count, end))
        self._last_end = end
