"""`GET /dashboard/requests/{id}`: a request's events, during and after its run."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.frontend.output.timeline import MAX_FINISHED, Lane, TimelineEvent
from quire.server.contract import contract
from quire.server.errors import ApiError
from quire.server.http.json_text import json_response
from quire.server.http.request_ids import names_of
from quire.server.state import server_state


class RequestTimeline(Lane, kw_only=True):
    """A lane of the dashboard with all its details."""

    events: list[TimelineEvent]
    metrics: dict[str, float | None]
    """Seconds of the request's parts: ttft, e2e, queue, prefill, decode, inference."""
    finish_reason: str | None
    related: list[str]
    """The sequences of the same response: n for each of its prompts."""
    dropped_events: int
    """Number of events that were dropped because the request had too many."""


@contract(answer=RequestTimeline, errors=[HTTPStatus.NOT_FOUND])
async def request_timeline(request: Request) -> Response:
    """Find a request by response id, client's `X-Request-Id` (the latest), or lane id."""
    asked = request.path_params["id"]
    timelines = server_state(request).engine.timelines
    found = timelines.find(lambda t: asked == t.id or asked in names_of(t.request_id))
    if not found:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"There is no request {asked!r} in progress or among the last {MAX_FINISHED}.",
            param="id",
            code="request_not_found",
        )
    first = found[0]
    _, response, _ = names_of(first.request_id)
    related = timelines.find(lambda t: names_of(t.request_id)[1] == response)
    lane = msgspec.structs.asdict(first.lane())
    answer = RequestTimeline(
        **lane,
        events=first.story(),
        metrics=first.durations(),
        finish_reason=first.finish_reason,
        related=sorted(t.id for t in related),
        dropped_events=first.num_dropped,
    )
    return json_response(answer)
