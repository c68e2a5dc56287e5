"""Calls of the core's utility methods from the front end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from quire.core.errors import InvalidRequestError, QuireError
from quire.core.messages import Call, CallResult


class CoreCalls:
    """Sends calls and matches the core's answers to them.

    Args:
        send: sends a call to the core; raises if there is no core.
    """

    def __init__(self, send: Callable[[Call], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()

    def __len__(self) -> int:
        """Return the number of calls without an answer."""
        return len(self._waiting)

    async def call(self, method: str, *args: Any) -> Any:
        """Return the method's result. Raises InvalidRequestError if the method failed."""
        call_id = next(self._ids)
        result = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(Call(call_id, method, list(args)))
            return await result
        finally:
            del self._waiting[call_id]

    def tell(self, method: str, *args: Any) -> None:
        """Send a call and do not wait for its answer."""
        self._send(Call(next(self._ids), method, list(args)))

    def answer(self, message: CallResult) -> None:
        future = self._waiting.get(message.call_id)
        if future is None or future.done():
            return
        if message.error is not None:
            future.set_exception(InvalidRequestError(message.error))
        else:
            future.set_result(message.value)

    def fail(self, error: QuireError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
