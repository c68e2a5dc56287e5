"""Packed weights in a file; torch-free."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from quire import _native
from quire.system.records import dataclass

Shape = tuple[int, int, int, int, int, int, int, bool, bool, float, int]
"""Kind, epilogue, n, k, group, what a group has apart from its scale, the zero of all, whether it
has a permutation and a bias, the input's scale, and how many experts have the n rows."""


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A linear weight as `pack_linear` once packed it, which takes it in a weight's place.

    dtype: name of the dtype that was packed.
    """

    weight: _native.PackedWeight
    dtype: str

    @property
    def shape(self) -> Shape:
        return self.weight.shape

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    @property
    def streamed_bytes(self) -> int:
        """Return the bytes of `nbytes` that come from a file at each use."""
        return self.weight.streamed_bytes


def read_linears(
    fd: int,
    offset: int,
    shapes: Sequence[Shape],
    dtype: str,
    threads: int,
    streamed: Sequence[bool] | None = None,
) -> tuple[list[StoredLinear], int]:
    """Return weights of these shapes, stored in a row from `offset` on, and their checksum.

    Args:
        streamed: which of them come from the file at each use; none of them, if None.

    Raises:
        OSError: the file cannot be read, or ends too early.
        ValueError: nothing has such a shape.
        MemoryError: there is no room.
    """
    weights = [_native.PackedWeight(shape) for shape in shapes]
    pool = _native.Pool(threads)
    checksum = 0
    kinds = zip(streamed or [False] * len(weights), weights, strict=True)
    for in_file, run in groupby(kinds, key=itemgetter(0)):
        part = [weight for _, weight in run]
        checksum += _native.map_packed(pool, fd, offset, part, in_file)
        offset = _native.packed_end(offset, part)
    return [StoredLinear(weight, dtype) for weight in weights], checksum % 2**64


def write_linears(fd: int, offset: int, linears: Sequence[StoredLinear]) -> int:
    """Write the weights in the format that `read_linears` reads; return the checksum. Raises
    OSError.
    """
    return _native.write_packed(fd, offset, [linear.weight for linear in linears])


class LinearFile:
    """A file without a name in `folder`, to which weights are moved so that they take no memory.

    It is gone with the last of them, however the process ends. Raises OSError.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        import tempfile

        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._pool = _native.Pool(threads)
        self.nbytes = 0

    def move(self, linear: StoredLinear) -> None:
        """Read the weight from the file from now on. Raises OSError, and then changes nothing."""
        fd, begin, weights = self._file.fileno(), self.nbytes, [linear.weight]
        written = _native.write_packed(fd, begin, weights)
        if _native.map_packed(self._pool, fd, begin, weights, True) != written:
            raise OSError(errno.EIO, "what was written is not what is read")
        self.nbytes = _native.packed_end(begin, weights)

    def close(self) -> None:
        """Close the file; weights that were moved stay readable."""
        self._file.close()


def stream_linears(
    linears: Sequence[StoredLinear], ahead_bytes: int, *, give_back: bool
) -> _native.WeightStream:
    """Read weights in files ahead of the products that use them, in this order.

    Args:
        ahead_bytes: at least so many bytes of the weight in use and the next ones are in memory.
        give_back: whether the pages of the others are given back, rather than left until the
            system takes them.
    """
    return _native.stream_packed([linear.weight for linear in linears], ahead_bytes, give_back)
