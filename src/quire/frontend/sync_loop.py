"""An event loop that runs only while a caller waits for a coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from quire.core.errors import EngineDeadError
from quire.frontend.interrupt import deferred_interrupt

T = TypeVar("T")


class SyncLoop:
    """Runs coroutines to their end for synchronous callers in one thread.

    The thread may run another event loop, as notebooks do. That loop waits meanwhile.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns.

        Ctrl-C cancels `work`. If KeyboardInterrupt were raised inside a task, each task that awaits
        it would raise it again, some of them in a later call.

        Raises:
            EngineDeadError: after `close`.
        """
        if self._loop.is_closed():
            work.close()
            raise EngineDeadError("The engine has been shut down.")
        with _without_running_loop():
            task = self._loop.create_task(work)
            cancel = partial(self._loop.call_soon_threadsafe, task.cancel)
            with _woken_by_signals(self._loop), deferred_interrupt(cancel) as interrupt:
                try:
                    result = self._loop.run_until_complete(task)
                except BaseException:
                    if not task.done():
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            self._loop.run_until_complete(task)
                    interrupt.check()
                    raise
            interrupt.check()
            return result

    def close(self) -> None:
        """Run what is due, then close the loop. Harmless when repeated."""
        if not self._loop.is_closed():
            self.run(asyncio.sleep(0))  # transports close in the loop's next iteration
            self._loop.close()


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a signal end the loop's wait for events, even if it comes just before the wait.

    A signal interrupts only a wait that has begun, and only in the thread that receives it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wake: socket.socket = loop._csock  # type: ignore[attr-defined] # as asyncio itself does
    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)


@contextlib.contextmanager
def _without_running_loop() -> Iterator[None]:
    """Hide the event loop that this thread runs, if any: asyncio allows one per thread."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
