"""The `quire` program, also as `python -m quire`: signals and exit statuses around the command.

A program that Ctrl-C or a closed pipe ends, ends by that signal and without a word: the shell
shows 130 or 141, and stops a loop.

Until `main` runs, Ctrl-C prints Python's traceback. So this module imports nothing that Python has
not loaded: `signal` and `typing` alone would take longer than the rest of the start.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

_SIGNALS = {130: signal.SIGINT, 141: signal.SIGPIPE}
"""Exit statuses of commands that a signal has ended."""


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    _open_streams()
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:  # while imports run there is nothing to clean up
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from quire.cli.main import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _interrupted
    try:
        status = run()
    except SystemExit as end:  # argparse's
        status = end.code if isinstance(end.code, int) else 1
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _exit(status)


def _open_streams() -> None:
    """Open closed standard streams as /dev/null, and print what their encoding lacks as escapes.

    Else the next file or socket would take a closed stream's place, and get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 - to the end
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Log(2, "w", closefd=False)),
        encoding=sys.stderr.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


class _Log(io.FileIO):
    """Standard error. A full disk loses what is printed there, and does not end the program."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(data).nbytes


def _interrupted(unraisable: Any, show: Any = sys.unraisablehook) -> None:
    """End the program if Ctrl-C came where nobody can catch it: in a destructor, say."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _die_of(130)
    show(unraisable)


def _exit(status: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141
    if status in _SIGNALS:
        _die_of(status)
    sys.exit(status)


def _die_of(status: int) -> NoReturn:
    number = _SIGNALS[status]
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(status)  # the first process of a container cannot be killed so


if __name__ == "__main__":
    main()
