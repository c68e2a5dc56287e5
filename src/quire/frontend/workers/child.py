"""A process of the front end's own that answers one question at a time."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from quire.frontend.workers.pipe import LENGTH_BYTES, LONGEST
from quire.system.parent import interrupts_blocked

LOST = (OSError, asyncio.IncompleteReadError)
"""What `Child` raises where the process has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """Frames in, frames out (see `frontend.workers.pipe`)."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        process, ours = spawn(command)
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def ask(self, request: bytes, longest: int = LONGEST) -> bytes:
        """Its answer to a frame; raises as `hear`."""
        self.writer.write(request)
        await self.writer.drain()
        return await self.hear(longest)

    async def hear(self, longest: int = LONGEST) -> bytes:
        """What it says next.

        Raises:
            OSError, IncompleteReadError: it has ended (`LOST`).
            ValueError: that would have more than `longest` bytes.
        """
        length = int.from_bytes(await self.reader.readexactly(LENGTH_BYTES), "little")
        if length > longest:
            raise ValueError(f"a frame of {length} bytes")
        return await self.reader.readexactly(length)

    def end(self) -> int:
        """Kill it, for it has nothing to lose; its exit status."""
        self.writer.close()
        self.process.kill()
        return self.process.wait()


def spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process, and our end of what it reads and writes."""
    ours, theirs = socket.socketpair()
    with theirs:
        ends = theirs.fileno()
        with interrupts_blocked():
            return subprocess.Popen(list(command), stdin=ends, stdout=ends), ours
