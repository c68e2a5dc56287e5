"""A process that is nothing without the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_POLL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Exit when the parent is gone, whatever runs meanwhile, and though this process be stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
