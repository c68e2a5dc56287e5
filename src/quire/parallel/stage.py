"""A worker's place between two pipeline stages: rows come from one and go to the other."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quire.parallel.shared_memory import whole_pages

if TYPE_CHECKING:
    from quire.core.dtypes import DType, HostArray

_HEADER = struct.Struct("<qq")
_FAILED = -1
"""Instead of a number of rows."""


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


class Link:
    """One worker's end of the way to the next stage's: rows in shared memory, headers in a pipe.

    A step's memory is used again `RowShape.steps` steps later. By then the step has landed, so
    nobody waits for room.

    Args:
        memory: descriptor of shared memory, with the link's `RowShape.nbytes` from `offset` on.
        pipe: descriptor of the pipe's end.
    """

    def __init__(self, memory: int, offset: int, pipe: int, shape: RowShape) -> None:
        self._pages = mmap.mmap(memory, shape.nbytes, offset=offset)
        self._pipe = pipe
        self._shape = shape

    def send(self, step: int, rows: HostArray) -> None:
        """Hand on rows [T, width]."""
        self._rows(step, len(rows))[:] = rows
        os.write(self._pipe, _HEADER.pack(step, len(rows)))

    def fail(self, step: int) -> None:
        """Say that there will be no rows of this step."""
        os.write(self._pipe, _HEADER.pack(step, _FAILED))

    def receive(self, step: int) -> HostArray:
        """Wait for a step's rows, and return them; they stay until the step has landed.

        What was sent of earlier steps, which this worker skipped, is dropped.

        Raises:
            StageFailedError: there are none.
            EOFError: the sender has ended.
        """
        while True:
            number, count = self._header()
            if number == step:
                break
            assert number < step, f"rows of step {number} came before those of step {step}"
        if count == _FAILED:
            raise StageFailedError("the stage before has failed in this step")
        return self._rows(step, count)

    def _header(self) -> tuple[int, int]:
        data = b""
        while len(data) < _HEADER.size:
            if not (more := os.read(self._pipe, _HEADER.size - len(data))):
                raise EOFError("the stage before has ended")
            data += more
        number, count = _HEADER.unpack(data)
        return number, count

    def _rows(self, step: int, count: int) -> HostArray:
        shape = self._shape
        rows: HostArray = np.frombuffer(
            self._pages, shape.dtype, count * shape.width, step % shape.steps * shape.step_bytes
        )
        return rows.reshape(count, shape.width)


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
        """Hand the step's rows to the stage behind."""
        assert self._behind is not None, "nothing comes behind the last stage"
        self._behind.send(self._step, rows)
        self._gave = True

    def fail(self) -> None:
        """End the step here: the stage behind shall not wait."""
        if self._behind is not None and not self._gave:
            self._behind.fail(self._step)
