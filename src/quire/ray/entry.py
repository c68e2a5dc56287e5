"""Where requests enter a Ray Serve deployment: each goes to a replica, and to another one if that
is lost before it has answered anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

from quire.core.errors import EngineRestartingError
from quire.server.errors import encode_event, error_response

ATTEMPTS = 7
PAUSE_SECONDS = 0.25
"""Before the second attempt; it doubles. A replica that is lost is known after a moment."""
ELSEWHERE = frozenset({502, 503, 504})
"""Statuses of a replica that restarts or stops. A full one answers 429: the others are fuller."""
EVENT_STREAM = "text/event-stream"


class Head(NamedTuple):
    """What a replica yields before the parts of an answer's body."""

    status: int
    headers: list[tuple[str, str]]


class Entry:
    """Passes requests on to the replicas, and their answers back."""

    def __init__(self, replicas: Any) -> None:
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        self._ask = replicas.options(method_name="answer", stream=True)
        self._lost = RayError, RayServeException

    async def __call__(self, request: Any) -> Any:
        """Return a stream once its first part has come, and any other answer once all has."""
        from starlette.responses import Response, StreamingResponse

        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        query = request.url.query
        target = path + (f"?{query}" if query else "")
        asked = request.method, target, request.headers.items(), await request.body()
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
            parts = self._ask.remote(*asked)
            try:
                head: Head = await anext(parts)
                streams = _is_stream(head)
                first = await anext(parts, b"") if streams else b"".join([p async for p in parts])
            except self._lost as error:
                why = str(error)
                continue
            except BaseException:
                parts.cancel()
                raise
            if head.status in ELSEWHERE and attempt + 1 < ATTEMPTS:
                parts.cancel()
                continue
            headers = dict(head.headers)
            if not streams:
                return Response(first, head.status, headers)
            return StreamingResponse(self._body(parts, first), head.status, headers)
        what = f"No replica could answer: {why}"
        return error_response(EngineRestartingError(what), request.scope)

    async def _body(self, parts: Any, first: bytes) -> AsyncIterator[bytes]:
        """Yield the parts of a stream. One that breaks off ends with an error event."""
        try:
            yield first
            async for part in parts:
                yield part
        except self._lost as error:
            why = f"The replica was lost after the answer had begun: {error}"
            yield encode_event(EngineRestartingError(why, fix="Send the request again."))
        finally:
            with suppress(*self._lost):
                parts.cancel()


def _is_stream(head: Head) -> bool:
    kinds = (kind for name, kind in head.headers if name.lower() == "content-type")
    return next(kinds, "").startswith(EVENT_STREAM)
