"""Ctrl-C that waits for a safe moment, so that the engine stays consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Records whether Ctrl-C was pressed; `check` raises it."""

    pressed = False

    def check(self) -> None:
        if self.pressed:
            raise KeyboardInterrupt


@contextmanager
def deferred_interrupt(then: Callable[[], object] | None = None) -> Iterator[Interrupt]:
    """Note the first Ctrl-C and call `then`, instead of raising it; a second one is immediate.

    Outside the main thread, and where the application handles SIGINT itself, nothing changes.
    """
    interrupt = Interrupt()
    default = signal.default_int_handler
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not default:
        yield interrupt
        return

    def press(signum: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            default(signum, frame)
        interrupt.pressed = True
        if then is not None:
            then()

    signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, default)
