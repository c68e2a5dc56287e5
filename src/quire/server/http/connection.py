"""Abort a request's work when its connection closes.

Starlette does not cancel an endpoint after a disconnect, so an abandoned generation
would run to its end. `while_connected` watches the connection and cancels the work at once, which
aborts the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def while_connected(work: Coroutine[object, object, T], receive: Receive) -> T:
    """Await `work`, unless the client disconnects first.

    Args:
        receive: the ASGI channel; the request's body was read.

    Raises:
        ClientDisconnect: the client disconnected; `work` was cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _cancel(task)
        await _cancel(gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[T]) -> None:
    """Cancel `task` and wait until it has ended; ignore its outcome."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("cancelled work ended with %r", error)
