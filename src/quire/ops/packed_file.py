"""Packed weights in a file, read and written by the native threads; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire import _native

Shape = tuple[int, int, int, int, int, bool, bool]
"""Kind, epilogue, n, k, group, and whether there are zero points, and a bias."""


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """A linear weight as `pack_linear` once packed it, which takes it in a weight's place.

    dtype: name of the torch dtype that was packed.
    """

    weight: _native.PackedWeight
    dtype: str

    @property
    def shape(self) -> Shape:
        return self.weight.shape

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


def read_linears(
    fd: int, offset: int, shapes: Sequence[Shape], dtype: str, threads: int
) -> tuple[list[StoredLinear], int]:
    """Weights of these shapes, one after the other from `offset` on, and their bytes' checksum.

    Raises:
        OSError: the file cannot be read, or ends too early.
        ValueError: nothing has such a shape.
        MemoryError: there is no room.
    """
    weights = [_native.PackedWeight(shape) for shape in shapes]
    checksum = _native.read_packed(_native.Pool(threads), fd, offset, weights)
    return [StoredLinear(weight, dtype) for weight in weights], checksum


def write_linears(fd: int, offset: int, linears: Sequence[StoredLinear]) -> int:
    """The reverse; returns the checksum, and raises OSError."""
    return _native.write_packed(_native.Pool(1), fd, offset, [linear.weight for linear in linears])
