"""Progress on stderr: a bar on a terminal, in a log a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

LINE_SECONDS = 10.0
"""Least time between two lines of a log."""


class Bar(Protocol):
    """What is told of each finished part."""

    def update(self) -> object: ...


class _Lines:
    """Writes how many parts are finished, unless `silent`."""

    def __init__(self, total: int, unit: str, *, silent: bool) -> None:
        self._total, self._unit, self._silent = total, unit, silent
        self._done, self._last = 0, time.monotonic()

    def update(self) -> None:
        self._done += 1
        now = time.monotonic()
        if not self._silent and now - self._last >= LINE_SECONDS:
            self._last = now
            print(f"{self._unit} {self._done} of {self._total}", file=sys.stderr, flush=True)


@contextmanager
def progress(total: int, unit: str, *, silent: bool = False) -> Iterator[Bar]:
    """Show the progress of `total` parts during the block.

    tqdm is imported for a terminal alone: its 3 MiB would count as the engine's memory.
    """
    if silent or not sys.stderr.isatty():
        yield _Lines(total, unit, silent=silent)
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, file=sys.stderr) as bar:
        yield bar
