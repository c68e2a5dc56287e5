"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """What is told of each finished part."""

    def update(self) -> object: ...


class _Silent:
    def update(self) -> None:
        """Do nothing."""


@contextmanager
def progress(total: int, unit: str, *, silent: bool = False) -> Iterator[Bar]:
    """Show a bar during the block; nothing unless a person is watching.

    Then tqdm is not imported: its 3 MiB would count as the engine's memory.
    """
    if silent or not sys.stderr.isatty():
        yield _Silent()
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, file=sys.stderr) as bar:
        yield bar
