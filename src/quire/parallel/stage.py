"""A worker's place between two pipeline stages: rows come from one and go to the other."""

from __future__ import annotations

import mmap
import os
import queue
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Hops
from quire.parallel.shared_memory import whole_pages
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.core.dtypes import DType, HostArray

_HEADER = struct.Struct("<qq")
_FAILED, _CAME = -1, -2
"""Instead of a number of rows: there are none; or a receipt, from the receiver."""


class StageFailedError(Exception):
    """The stage before has failed in this step."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """The rows that stages hand on.

    Attributes:
        most: rows of a step.
        steps: steps in flight; each has its own memory.
    """

    most: int
    width: int
    dtype: DType
    steps: int

    @property
    def step_bytes(self) -> int:
        return self.most * self.width * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Return the bytes of the memory between two workers."""
        return whole_pages(self.steps * self.step_bytes)


class Link(ABC):
    """One worker's end of the way to the next stage's.

    Each step's rows have their own place in memory, which is used again `RowShape.steps` steps
    later. By then the step has landed, so nobody waits for room.
    """

    def __init__(self, shape: RowShape, memory: mmap.mmap | bytearray) -> None:
        self._shape, self._memory = shape, memory

    @abstractmethod
    def send(self, step: int, rows: HostArray) -> None:
        """Hand on rows [T, width]."""

    def fail(self, step: int) -> None:
        """Say that there will be no rows of this step."""
        self._write(_HEADER.pack(step, _FAILED))

    def receive(self, step: int) -> HostArray:
        """Wait for a step's rows, and return them; they stay until the step has landed.

        What was sent of earlier steps, which this worker skipped, is dropped.

        Raises:
            StageFailedError: there are none.
            EOFError: the sender has ended, or has skipped the step.
        """
        while (header := self._header())[0] < step:
            pass
        number, count = header
        if number != step:
            raise EOFError(f"the stage before skipped step {step}: rows of step {number} came")
        if count == _FAILED:
            raise StageFailedError("the stage before has failed in this step")
        return self._rows(step, count)

    def take_hops(self) -> Hops:
        """Return the steps that have come to another machine since the last call."""
        return Hops()

    def close(self) -> None:  # noqa: B027
        """End the link, if the process does not own it; the other end notices."""

    @abstractmethod
    def _write(self, header: bytes) -> None:
        """Send a header."""

    @abstractmethod
    def _header(self) -> tuple[int, int]:
        """Return the next step whose rows are there, and their number; raise `EOFError`."""

    def _rows(self, step: int, count: int) -> HostArray:
        """Return the place of a step's rows."""
        shape = self._shape
        begin = step % shape.steps * shape.step_bytes
        rows: HostArray = np.frombuffer(self._memory, shape.dtype, count * shape.width, begin)
        return rows.reshape(count, shape.width)


class NearLink(Link):
    """A link on one machine: rows in shared memory, headers in a pipe.

    Args:
        memory: descriptor of shared memory, with the link's `RowShape.nbytes` from `offset` on.
        pipe: descriptor of the pipe's end.
    """

    def __init__(self, memory: int, offset: int, pipe: int, shape: RowShape) -> None:
        super().__init__(shape, mmap.mmap(memory, shape.nbytes, offset=offset))
        self._pipe = pipe

    def send(self, step: int, rows: HostArray) -> None:
        self._rows(step, len(rows))[:] = rows
        self._write(_HEADER.pack(step, len(rows)))

    def _write(self, header: bytes) -> None:
        os.write(self._pipe, header)

    def _header(self) -> tuple[int, int]:
        data = b""
        while len(data) < _HEADER.size:
            if not (more := os.read(self._pipe, _HEADER.size - len(data))):
                raise EOFError("the stage before has ended")
            data += more
        number, count = _HEADER.unpack(data)
        return number, count


class FarLink(Link):
    """A link between two machines: headers and rows in a stream, and receipts in the other way.

    A thread of the receiver takes rows in as they come, so that the sender does not wait until the
    receiver begins the step. A thread of the sender takes the receipts, which only measure the
    link.

    Args:
        stream: descriptor of a connected socket; the link uses a copy of it.
        receives: whether rows come from it.
    """

    def __init__(self, stream: int, shape: RowShape, *, receives: bool) -> None:
        super().__init__(shape, bytearray(shape.steps * shape.step_bytes if receives else 0))
        self._socket = socket.socket(fileno=os.dup(stream))
        self._socket.setblocking(True)
        self._arrived: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        """Headers of complete rows; None once the stream has ended."""
        self._most = shape.most if receives else _FAILED - 1
        self._sending = threading.Lock()
        self._sent: dict[int, tuple[float, int]] = {}
        """Step → when its rows were sent, and their bytes, until the receipt has come."""
        self._hops: list[tuple[float, int]] = []
        threading.Thread(target=self._take_in, name="rows", daemon=True).start()

    def send(self, step: int, rows: HostArray) -> None:
        self._sent[step] = time.monotonic(), rows.nbytes
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        self._write(_HEADER.pack(step, len(rows)), data)

    def take_hops(self) -> Hops:
        hops, self._hops = self._hops, []
        return Hops(sum(hop[0] for hop in hops), sum(hop[1] for hop in hops), len(hops))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self, header: bytes, rows: memoryview | bytes = b"") -> None:
        try:
            with self._sending:
                sent = self._socket.sendmsg([header, rows])
                if sent < len(header):  # never seen: a header fits into any buffer
                    self._socket.sendall(header[sent:])
                    sent = len(header)
                self._socket.sendall(rows[sent - len(header) :])
        except OSError as error:
            raise EOFError(f"the connection to the stage behind has ended: {error}") from error

    def _header(self) -> tuple[int, int]:
        if (header := self._arrived.get()) is None:
            self._arrived.put(None)
            raise EOFError("the connection to the stage before has ended")
        return header

    def _take_in(self) -> None:
        shape, data = self._shape, bytearray(_HEADER.size)
        while self._fill(memoryview(data)):
            step, count = _HEADER.unpack(data)
            if count == _CAME:
                self._note_receipt(step)
                continue
            if not (step >= 0 and _FAILED <= count <= self._most):
                break
            begin = step % shape.steps * shape.step_bytes
            size = max(0, count) * shape.width * shape.dtype.itemsize
            if not self._fill(memoryview(self._memory)[begin : begin + size]):
                break
            self._arrived.put((step, count))
            if count >= 0:
                with suppress(EOFError):
                    self._write(_HEADER.pack(step, _CAME))
        self._arrived.put(None)

    def _note_receipt(self, step: int) -> None:
        """Note when the other machine has had a step's rows; ignore steps that were not sent."""
        if (sent := self._sent.pop(step, None)) is not None:
            self._hops.append((time.monotonic() - sent[0], sent[1]))

    def _fill(self, part: memoryview) -> bool:
        """Receive as many bytes as `part` has; return whether they came."""
        with suppress(OSError):
            while len(part):
                if not (count := self._socket.recv_into(part)):
                    return False
                part = part[count:]
            return True
        return False


class Stage:
    """A worker's links, for one step at a time.

    Args:
        before, behind: None in the first and in the last stage.
    """

    def __init__(self, before: Link | None, behind: Link | None) -> None:
        self._before = before
        self._behind = behind
        self._step = 0
        self._gave = False

    def begin(self, step: int) -> None:
        """Begin a step; numbers ascend."""
        self._step, self._gave = step, False

    def take(self) -> HostArray:
        """Return the step's rows from the stage before; raises as `Link.receive`."""
        assert self._before is not None, "nothing comes before the first stage"
        return self._before.receive(self._step)

    def give(self, rows: HostArray) -> None:
        assert self._behind is not None, "nothing comes behind the last stage"
        self._behind.send(self._step, rows)
        self._gave = True

    def take_hops(self) -> Hops:
        """Return the steps that have come to the stage behind on another machine, since the last
        call."""
        return Hops() if self._behind is None else self._behind.take_hops()

    def fail(self) -> None:
        """End the step here: the stage behind shall not wait."""
        if self._behind is not None and not self._gave:
            self._behind.fail(self._step)

    def close(self) -> None:
        for link in (self._before, self._behind):
            if link is not None:
                link.close()
