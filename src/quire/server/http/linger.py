"""Deliver an answer to a client that is still sending."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

LINGER_SECONDS = 5.0


class LingeringResponse(Response):
    """Sends the whole answer, then discards input for at most `LINGER_SECONDS`.

    Closing a connection with unread data resets it, and a reset can destroy an answer that the
    client has not read yet; most clients read only once they have sent everything.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})
