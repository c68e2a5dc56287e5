"""The core's utility methods, called from the front end: who waits for which answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from quire.core.errors import InvalidRequestError, QuireError
from quire.core.messages import Call, CallResult


class CoreCalls:
    """Calls that go to the core by `send`, which raises where there is no core."""

    def __init__(self, send: Callable[[Call], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()

    def __len__(self) -> int:
        """Calls that wait for their answer."""
        return len(self._waiting)

    async def call(self, method: str, *args: Any) -> Any:
        """The method's result. Raises InvalidRequestError if it failed."""
        call_id = next(self._ids)
        result = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(Call(call_id, method, list(args)))
            return await result
        finally:
            del self._waiting[call_id]

    def tell(self, method: str, *args: Any) -> None:
        """Have the method called, and wait for nothing."""
        self._send(Call(next(self._ids), method, list(args)))

    def answer(self, message: CallResult) -> None:
        """What the core says of a call."""
        future = self._waiting.get(message.call_id)
        if future is None or future.done():
            return
        if message.error is not None:
            future.set_exception(InvalidRequestError(message.error))
        else:
            future.set_result(message.value)

    def fail(self, error: QuireError) -> None:
        """No call that waits will be answered."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
