"""A child process that answers one question at a time."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Sequence

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

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        process, ours = spawn(command)
        return cls(process, *await asyncio.open_connection(sock=ours))

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
        self.process.kill()
        return self.process.wait()


def spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; return it with our end of its stdin and stdout."""
    ours, theirs = socket.socketpair()
    with theirs:
        ends = theirs.fileno()
        with interrupts_blocked():
            return subprocess.Popen(list(command), stdin=ends, stdout=ends), ours
