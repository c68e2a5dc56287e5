"""Rows that another process prints, as long as it has time; for `gpu_bars`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]


def rows_within(name: str, command: Sequence[str], limit: float) -> Iterator[Row]:
    """Yield the rows that a process prints within `limit` seconds; then end it and its children.

    The last row says of a process that it took too long, or that it crashed.
    """
    begin = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:

        def end() -> None:  # a process that waits for a kernel ignores all other signals
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit, end)
        timer.start()
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    yield json.loads(line)
            status = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                end()
    if status:
        late = time.monotonic() - begin >= limit
        why = f"ended after {limit:.0f} s" if late else f"its process ended with {status}"
        yield {"what": name, "error": why}
