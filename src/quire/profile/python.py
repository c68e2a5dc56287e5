"""Python's own time, by cProfile: for a block, and for a thread that calls start and stop it. While
it runs, Python is several times slower."""

from __future__ import annotations

import cProfile
import io
import marshal
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.core.errors import InvalidRequestError

TOP = 20
"""Functions in a table."""


@contextmanager
def cprofile(path: str | Path | None = None) -> Iterator[pstats.Stats]:
    """Profile this thread's Python inside; also a decorator. Saves to `path`, for pstats.

    with cprofile("run.pstats") as stats:
        llm.generate(prompts)
    print(table(stats))
    """
    profile = cProfile.Profile()
    stats = pstats.Stats()
    profile.enable()
    try:
        yield stats
    finally:
        profile.disable()
        stats.add(profile)
        if path is not None:
            stats.dump_stats(path)


class ThreadProfile:
    """Profiles the thread that calls `start`, which also calls `stop`."""

    def __init__(self) -> None:
        self._profile: cProfile.Profile | None = None

    def start(self) -> None:
        """Start; ignored if already started."""
        if self._profile is None:
            self._profile = cProfile.Profile()
            self._profile.enable()

    def stop(self) -> bytes:
        """Stop; return the bytes that `pstats.Stats.dump_stats` would write.

        Raises:
            InvalidRequestError: it has not been started.
        """
        profile, self._profile = self._profile, None
        if profile is None:
            raise InvalidRequestError("Python is not being profiled.")
        profile.disable()
        profile.create_stats()
        return marshal.dumps(profile.stats)


def table(stats: pstats.Stats | str | Path, top: int = TOP) -> str:
    """Return the functions with the most time of their own, from statistics or a file."""
    out = io.StringIO()
    shown = stats if isinstance(stats, pstats.Stats) else pstats.Stats(str(stats))
    shown.stream = out  # type: ignore[attr-defined]
    shown.strip_dirs().sort_stats("tottime").print_stats(top)
    return out.getvalue().strip()
