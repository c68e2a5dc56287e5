"""Write GGUF files, version 3 (`checkpoint.gguf` shows the layout)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_types import TENSOR_TYPES, TYPES
from quire.system.records import dataclass

Value = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float] | Sequence[str]
"""The value of a metadata key. Integers are written as uint32, or as int32 or (u)int64 if they do
not fit, integers in a list as int32, floats as float32, an empty list as a list of strings."""

ALIGNMENT = 32
_VERSION = 3
_NUMBERS = {type_.name: number for number, type_ in TENSOR_TYPES.items()}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64 = 4, 5, 6, 7, 8, 9, 10, 11
_LAYOUTS = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?", _UINT64: "<Q", _INT64: "<q"}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be written.

    Attributes:
        name: GGUF's.
        type: name of a type in `gguf_types.TYPES`.
        shape: row-major; the last extent a multiple of the type's block size.
    """

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        kind = TYPES[self.type]
        return math.prod(self.shape) // kind.block_size * kind.block_bytes


class GGUFWriter:
    """One file; its tensors are written one by one in the planned order.

    The file is called `<name>.partial` until `close`. If a write was interrupted and the same
    metadata and tensors are planned again, it continues where it stopped: `finished` lists the
    tensors that are already written.

        with GGUFWriter(path, metadata, planned) as writer:
            for tensor in planned[len(writer.finished):]:
                writer.add(tensor.name, data)

    Raises:
        ValueError: a row does not divide into blocks, or two tensors share a name.
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, Value], tensors: Sequence[PlannedTensor]
    ) -> None:
        self.path = path
        self._partial = path.with_name(path.name + ".partial")
        header, self._offsets = _header(metadata, tensors)
        self._tensors = list(tensors)
        self._file: BinaryIO
        size = self._partial.stat().st_size if self._partial.exists() else 0
        if size >= len(header) and _begins_with(self._partial, header):
            self._file = self._partial.open("r+b")
        else:
            self._file = self._partial.open("w+b")
            self._file.write(header)
            size = len(header)
        ends = [at + tensor.nbytes for at, tensor in zip(self._offsets, self._tensors, strict=True)]
        self._done = sum(end <= size for end in ends)

    @property
    def finished(self) -> list[str]:
        """Return the names of the written tensors, the first of the planned ones."""
        return [tensor.name for tensor in self._tensors[: self._done]]

    def add(self, name: str, data: npt.NDArray[Any]) -> None:
        """Write the next tensor's bytes as stored.

        Raises:
            ValueError: another tensor is next, or the data has another size.
        """
        if self._done == len(self._tensors) or self._tensors[self._done].name != name:
            raise ValueError(f"{name!r} is not the next tensor of {self.path.name}")
        tensor = self._tensors[self._done]
        if data.nbytes != tensor.nbytes:
            raise ValueError(f"{name!r} takes {tensor.nbytes} bytes, not {data.nbytes}")
        self._file.seek(self._offsets[self._done])
        self._file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        self._file.flush()
        self._done += 1

    def close(self) -> None:
        """Rename the file to its final name.

        Raises:
            ValueError: tensors are missing.
        """
        if self._done < len(self._tensors):
            raise ValueError(f"{self._tensors[self._done].name!r} was not written")
        # Readers also expect the padding after the last tensor.
        self._file.truncate(_aligned(self._file.seek(0, 2)))
        self._file.close()
        self._partial.replace(self.path)

    def leave(self) -> None:
        """Keep the partial file for a later write."""
        self._file.close()

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()


def _header(
    metadata: Mapping[str, Value], tensors: Sequence[PlannedTensor]
) -> tuple[bytes, list[int]]:
    """Return the bytes before the data, with padding, and each tensor's offset in the file."""
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), *_value(key, value)]
    offset, offsets, names = 0, [], set()
    for tensor in tensors:
        kind = TYPES[tensor.type]
        if tensor.shape[-1] % kind.block_size:
            raise ValueError(f"{tensor.name!r}: rows of {tensor.shape[-1]} are no {kind.name}")
        if tensor.name in names:
            raise ValueError(f"{tensor.name!r} occurs twice")
        names.add(tensor.name)
        extents = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        parts += [
            _string(tensor.name),
            struct.pack("<I", len(tensor.shape)),
            extents,
            struct.pack("<IQ", _NUMBERS[tensor.type], offset),
        ]
        offsets.append(offset)
        offset = _aligned(offset + tensor.nbytes)
    header = b"".join(parts)
    header = header.ljust(_aligned(len(header)), b"\0")
    return header, [len(header) + offset for offset in offsets]


def _value(key: str, value: Value) -> list[bytes]:
    """Return the type and the bytes of a metadata value."""
    if isinstance(value, str):
        return [struct.pack("<I", _STRING), _string(value)]
    if isinstance(value, (bool, int, float)):
        kind = _scalar_type(value)
        return [struct.pack("<I", kind), struct.pack(_LAYOUTS[kind], value)]
    items: list[bool | int | float | str] = list(value)
    head = struct.pack("<I", _ARRAY)
    first = items[0] if items else ""
    if not all(type(item) is type(first) for item in items):
        raise ValueError(f"{key!r} holds items of different types")
    if isinstance(first, str):
        strings = [_string(item) for item in items if isinstance(item, str)]
        return [head, struct.pack("<IQ", _STRING, len(items)), *strings]
    kind = _INT32 if type(first) is int else _scalar_type(first)
    layout = np.dtype(_LAYOUTS[kind])
    return [head, struct.pack("<IQ", kind, len(items)), np.array(items, layout).tobytes()]


def _scalar_type(value: bool | int | float) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, float):
        return _FLOAT32
    if 0 <= value < 1 << 32:
        return _UINT32
    if value >= 0:
        return _UINT64
    return _INT32 if value >= -(1 << 31) else _INT64


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _begins_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start
