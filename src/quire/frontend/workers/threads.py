"""Threads that keep the event loop free and do not delay the interpreter's exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from typing import Any, TypeVar

from quire.core.errors import EngineDeadError

T = TypeVar("T")


class DaemonThreads:
    """Runs functions in at most `size` threads; the others wait in a queue.

    With `ThreadPoolExecutor`, the process would wait for its threads at exit: a minute if one
    tokenizes 14 MiB. For one event loop.

    Attributes:
        num_abandoned: functions that still run for cancelled callers.
    """

    def __init__(self, size: int, name: str) -> None:
        self.num_abandoned = 0
        self._name = name
        self._left = size
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._waiting: set[Future[Any]] = set()
        self._closed = False

    async def run(self, work: Callable[[], T], ended: Callable[[], None] | None = None) -> T:
        """Return what `work` returns. Cancelling the caller removes `work` from the queue.

        Args:
            ended: called once in the event loop, when no thread has `work` any more.

        Raises:
            EngineDeadError: `shutdown` was called, before or meanwhile.
        """
        loop = asyncio.get_running_loop()
        future: Future[T] = Future()
        if ended is not None:
            future.add_done_callback(lambda _: _call_soon(loop, ended))
        if self._closed:
            future.cancel()
            raise EngineDeadError("The engine has been shut down.")
        self._queue.put((future, work))
        if self._left:
            self._left -= 1
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        self._waiting.add(future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.running():
                self.num_abandoned += 1
                future.add_done_callback(lambda _: _call_soon(loop, self._on_abandoned_end))
            raise
        finally:
            self._waiting.discard(future)

    def shutdown(self) -> None:
        """Fail all callers. Harmless when repeated."""
        self._closed = True
        for future in self._waiting:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(EngineDeadError("The engine has been shut down."))

    def _on_abandoned_end(self) -> None:
        self.num_abandoned -= 1

    def _serve(self) -> None:
        while True:
            future, work = self._queue.get()
            with contextlib.suppress(InvalidStateError):  # it failed at `shutdown`
                if future.done() or not future.set_running_or_notify_cancel():
                    continue
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(function)
