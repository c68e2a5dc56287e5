"""A child process that ends with its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PARENT_POLL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Exit when the parent is gone, even if this process is busy or stopped."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Protect processes started in this block from Ctrl-C in the terminal; their parent handles it.

    They inherit the signal mask, so that even their imports are not interrupted. An interrupt of
    this process waits for the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
