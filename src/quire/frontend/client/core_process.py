"""The process of an engine core.

It imports little, because `quire serve` begins with it: the core then imports its modules while the
program reads its flags.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import EngineDeadError
from quire.engine.suspects import Suspects
from quire.system.frames import FrameSocket
from quire.system.parent import interrupts_blocked
from quire.system.proc import oom_kills

if TYPE_CHECKING:
    from quire.resolve.arguments import EngineArgs

CORE_COMMAND = (sys.executable, "-m", "quire.engine.process")
RAY_COMMAND = (sys.executable, "-m", "quire.ray.core")
"""Stands for a core on a machine that Ray chooses."""


def core_command(args: EngineArgs) -> tuple[str, ...]:
    """Return the command for a core on this machine, or on one that Ray chooses."""
    on_ray = len(args.replicas) > 1 and args.data_parallel_backend == "ray"
    return RAY_COMMAND if on_ray else CORE_COMMAND


@contextmanager
def _asking_for(what: str, fix: str) -> Iterator[None]:
    """Raise the system's error as one of the engine, with what to do."""
    try:
        yield
    except OSError as error:
        message = f"The engine core cannot start: the system refuses {what} ({error})."
        raise EngineDeadError(message, fix=fix) from error


class CoreProcess:
    """A process that imports its modules, and then waits for its configuration.

    Args:
        words: after the command's own arguments.
        cpus: of its replica, if it shares none with the others: it takes no time of theirs while it
            imports.

    Attributes:
        popen: the process itself.
        socket: our end of the connection.
        directory: of the core's files; only this user can read it.
        oom_kills: how many processes the kernel had ended before, because memory ran out.
        suspects: see `CoreClient`.

    Raises:
        EngineDeadError: the system has no process or no temporary folder for it.
    """

    def __init__(
        self, command: Sequence[str] = CORE_COMMAND, *words: str, cpus: Sequence[int] = ()
    ) -> None:
        from shutil import rmtree
        from tempfile import mkdtemp

        self.oom_kills = oom_kills()
        with ExitStack() as left:  # undone if it does not start
            with _asking_for("a folder for its files", "Set TMPDIR to a folder with free space."):
                self.directory = Path(mkdtemp(prefix="quire-"))
                left.callback(rmtree, self.directory, ignore_errors=True)
                self.suspects = Suspects(self.directory / "marks")
            with _asking_for("a process", "Raise the limits on processes, files and memory."):
                self.socket, theirs = FrameSocket.pair()
                left.callback(self.socket.close)
                with theirs, interrupts_blocked():
                    end = theirs.fileno()
                    self.popen = subprocess.Popen(
                        [*command, str(self.directory), str(os.getpid()), str(end), *words],
                        stdin=subprocess.DEVNULL,
                        stdout=2,  # the core's prints must not mix with the user's output
                        pass_fds=[end],
                    )
            left.pop_all()
        if cpus:
            with suppress(OSError):  # it has ended already
                os.sched_setaffinity(self.popen.pid, cpus)

    def kill(self) -> None:
        """End the process and remove its files. Harmless when repeated."""
        self.popen.kill()
        self.popen.wait()
        self.remove()

    def abandon(self) -> None:
        """Do the same at the end of this process, which waits for nothing."""
        self.popen.send_signal(signal.SIGKILL)
        self.remove()

    def remove(self) -> None:
        """Close the connection and remove the files."""
        from shutil import rmtree

        self.socket.close()
        rmtree(self.directory, ignore_errors=True)
