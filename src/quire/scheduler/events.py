"""What happens to requests beside decoding, noted for the front end when it happens, and only then.

A step in which everyone decodes notes nothing, so that timelines cost such steps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.messages import EventKind, RequestEvent, StepOutputs
from quire.core.request import Request
from quire.scheduler.running import Admitted
from quire.scheduler.steps import InFlight


class Events:
    """Collects events until a step's outputs take them along.

    Attributes:
        now: the moment of what is noted, on the scheduler's clock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._noted: list[RequestEvent] = []
        self._last_end = 0.0

    def give(self, outputs: StepOutputs) -> None:
        """Put all since the last time into `outputs`, behind what is there."""
        if self._noted:
            outputs.events, self._noted = [*outputs.events, *self._noted], []

    def note(self, kind: EventKind, request: Request, tokens: int = 0) -> None:
        self._noted.append(RequestEvent(request.request_id, kind, self.now, tokens))

    def admitted(self, admitted: Iterable[Admitted]) -> None:
        for new in admitted:
            self.note("admitted", new.request, new.num_computed)

    def computed(self, flight: InFlight, end: float) -> None:
        """Note the chunks of a step that has been computed.

        A step that was scheduled while another ran began when that one ended.
        """
        if flight.prefills:
            start = max(flight.begun, self._last_end)
            step = flight.step
            counts = step.num_scheduled_tokens[flight.prefills].tolist()
            for row, count in zip(flight.prefills, counts, strict=True):
                name = step.request_ids[row]
                self._noted.append(RequestEvent(name, "prefill", start, count, end))
        self._last_end = end
