"""Judge edits in forked children, which share what this process has imported."""

import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.edits import Edit

MEMORY = 8 << 30
BROKEN, TIMED_OUT = 4, 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an edit.

    Attributes:
        by: the test that failed, "timeout" or "crash"; empty if the edit survived.
    """

    by: str
    seconds: float


Tell = Callable[[Edit, Verdict], None]


def in_children(edits: Sequence[Edit], jobs: int, work: Callable[[Edit], str], tell: Tell) -> None:
    """Run `work` on each edit in a child of its own, and tell its verdict."""
    waiting, running = [*edits][::-1], dict[int, tuple[Edit, int, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            edit = waiting.pop()
            pid, pipe = fork(lambda edit=edit: work(edit).encode())  # type: ignore[misc]
            running[pipe] = edit, pid, time.monotonic()
        for pipe in select.select([*running], [], [])[0]:
            edit, pid, begin = running.pop(pipe)
            code, answer = join(pid, pipe)
            if code == BROKEN:
                raise RuntimeError(f"{edit.name} could not be judged:\n{answer.decode()}")
            by = {0: answer.decode(), TIMED_OUT: "timeout"}.get(code, "crash")
            tell(edit, Verdict(by, time.monotonic() - begin))


def fork(work: Callable[[], bytes]) -> tuple[int, int]:
    """Run `work` in a child. Returns its pid, and a pipe from which its answer can be read."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = BROKEN
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        answer, code = work(), 0
    except BaseException:
        answer = traceback.format_exc().encode()
    with open(write, "wb") as pipe:
        pipe.write(answer)
    os._exit(code)


def join(pid: int, pipe: int) -> tuple[int, bytes]:
    """Return the exit code and the answer of a child that has ended, or is about to."""
    with os.fdopen(pipe, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what a test has left behind
    return os.waitstatus_to_exitcode(status), answer
