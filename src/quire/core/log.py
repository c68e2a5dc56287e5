"""Logging to stderr: stdout is for the user's output."""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TextIO

from quire.core.errors import ConfigError
from quire.core.registry import did_you_mean
from quire.system import env

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


PATIENCE_SECONDS = 0.1
"""How long a pipe or a terminal may take nothing before lines are dropped."""


class _Helper:
    """Writes where a write may block: on another user's pipe or terminal."""

    def __init__(self) -> None:
        self._thread: Thread | None = None

    def write(self, number: int, data: bytes, patience: float) -> int:
        """Return how many bytes are written, or will be; 0 while an earlier write is blocked."""
        if self._thread is not None and self._thread.is_alive():
            return 0

        def work() -> None:
            with suppress(OSError):
                os.write(number, data)

        self._thread = Thread(target=work, name="log", daemon=True)
        self._thread.start()
        self._thread.join(patience)
        return len(data)


class _StderrHandler(logging.Handler):
    """Writes to the present `sys.stderr`, so that redirection works.

    A pipe that nobody reads, or a terminal that is held, must not stop the event loop or a step.
    So lines that it does not take are dropped, and their number is logged later.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_lost = 0
        self._is_cut = False
        self._helper = _Helper()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + "\n"
            if (number := _pipe_of(sys.stderr)) is None:
                sys.stderr.write(text)
            else:
                self._write(number, text)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def _write(self, number: int, text: str) -> None:
        patience = PATIENCE_SECONDS
        if self._num_lost:
            text = f"WARNING {self._num_lost} lines of the log were lost: nobody read it.\n{text}"
            patience = 0.0
        if self._is_cut:
            text = f"\n{text}"
        data = text.encode("utf-8", "backslashreplace")
        with _without_blocking(number) as own:
            if own is None:
                written = self._helper.write(number, data, PATIENCE_SECONDS)
            else:
                written = _write_parts(own, data, patience)
        self._num_lost = 0 if written == len(data) else self._num_lost + 1
        if written:
            self._is_cut = written < len(data)


@contextmanager
def _without_blocking(number: int) -> Iterator[int | None]:
    """Return another descriptor of a pipe or a terminal, whose writes do not block; of something
    else the same. None if another user owns it.

    Other processes write there too, so there may be no room left although there just was; and a
    terminal with room for one byte may have none for a line. It is not kept open: somebody may wait
    for the pipe's end.
    """
    if not stat.S_ISFIFO(os.fstat(number).st_mode) and not os.isatty(number):
        yield number
        return
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        own = os.open(f"/proc/self/fd/{number}", flags)
    except OSError:
        yield None
        return
    try:
        yield own
    finally:
        os.close(own)


def _write_parts(number: int, data: bytes, patience: float) -> int:
    """Return how many bytes of `data` the descriptor took."""
    written = 0
    while written < len(data) and _takes(number, patience):
        part = data[written : written + select.PIPE_BUF]  # a pipe with room takes so much
        try:
            written += os.write(number, part)
        except BlockingIOError:
            break
    return written


def _pipe_of(stream: TextIO) -> int | None:
    """Return the descriptor of a stream whose writes may block for ever; None for files."""
    try:
        number = stream.fileno()
    except (OSError, AttributeError):  # a buffer in memory
        return None
    return None if stat.S_ISREG(os.fstat(number).st_mode) else number


def _takes(number: int, seconds: float) -> bool:
    """Return whether a descriptor takes data within so many seconds."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


def setup_logging() -> None:
    """Show the log at the level of `QUIRE_LOG_LEVEL`, unless the application has its own handlers.

    Raises:
        ConfigError: the variable has an unknown level.
    """
    level = env.log_level()
    if level not in LEVELS:
        raise ConfigError(
            f"QUIRE_LOG_LEVEL is {level!r}; {did_you_mean(level, LEVELS)}", param="QUIRE_LOG_LEVEL"
        )
    logger = logging.getLogger("quire")
    logger.setLevel(level)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
