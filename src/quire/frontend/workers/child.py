"""A child process that answers one question at a time."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from quire.frontend.workers.pipe import LENGTH_BYTES, LONGEST
from quire.system.parent import interrupts_blocked
from quire.system.records import dataclass

LOST = (OSError, asyncio.IncompleteReadError)
"""What `Child` raises if the process has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A process that reads and writes frames (see `frontend.workers.pipe`)."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exit: Exit

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        process, ours = spawn(command)
        ended = Exit(process)
        return cls(process, *await asyncio.open_connection(sock=ours), ended)

    async def ask(self, request: bytes, longest: int = LONGEST) -> bytes:
        """Send a frame and return the answer; raises as `hear`."""
        self.writer.write(request)
        await self.writer.drain()
        return await self.hear(longest)

    async def hear(self, longest: int = LONGEST) -> bytes:
        """Return the next frame.

        Raises:
            OSError, IncompleteReadError: the process has ended (`LOST`).
            ValueError: the frame is longer than `longest` bytes.
        """
        length = int.from_bytes(await self.reader.readexactly(LENGTH_BYTES), "little")
        if length > longest:
            raise ValueError(f"a frame of {length} bytes")
        return await self.reader.readexactly(length)

    def end(self) -> int:
        """Kill the process and return its exit status."""
        self.writer.close()
        self.exit.close()
        self.process.kill()
        return self.process.wait()


class Exit:
    """Collects a process's exit status as soon as it ends, so that it stays no zombie.

    An idle process may end long before anyone asks it something.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        with suppress(OSError):  # too many open files; or a kernel without such descriptors
            self._fd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._fd, self._ended)

    def close(self) -> None:
        """Stop waiting. Harmless when repeated."""
        fd, self._fd = self._fd, None
        if fd is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
            os.close(fd)

    def _ended(self) -> None:
        self._process.poll()
        self.close()


def spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; return it with our end of its stdin and stdout."""
    ours, theirs = socket.socketpair()
    with theirs:
        ends = theirs.fileno()
        with interrupts_blocked():
            return subprocess.Popen(list(command), stdin=ends, stdout=ends), ours
