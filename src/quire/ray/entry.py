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
        """Return an answer once its first part has come."""
        from starlette.responses import StreamingResponse

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
                first = await anext(parts, None)
            except self._lost as error:
                why = str(error)
                continue
            except BaseException:
                parts.cancel()
                raise
            if head.status in ELSEWHERE and attempt + 1 < ATTEMPTS:
                parts.cancel()
                continue
            body = self._body(parts, first, dict(head.headers))
            return StreamingResponse(body, head.status, dict(head.headers))
        what = f"No replica could answer: {why}"
        return error_response(EngineRestartingError(what), request.scope)

    async def _body(
        self, parts: Any, first: bytes | None, headers: dict[str, str]
    ) -> AsyncIterator[bytes]:
        """Yield the parts of an answer. A stream that breaks off ends with an error event."""
        try:
            if first is not None:
                yield first
            async for part in parts:
                yield part
        except self._lost as error:
            kinds = (kind for name, kind in headers.items() if name.lower() == "content-type")
            if not next(kinds, "").startswith(EVENT_STREAM):
                raise  # half an answer must not look whole
            why = f"The replica was lost after the answer had begun: {error}"
            yield encode_event(EngineRestartingError(why, fix="Send the request again."))
        finally:
            with suppress(*self._lost):
                parts.cancel()
