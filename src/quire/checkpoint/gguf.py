"""GGUF files, versions 2 and 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

    [magic "GGUF"][version][tensor count][metadata count]
    [metadata: key, type, value]…  [tensors: name, rank, extents, type, offset]…
    [padding to the alignment]     [tensor data, each aligned]

The header is untrusted: every count and length in it is checked against what is left of the
file before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_types import TENSOR_TYPES, TensorType
from quire.checkpoint.mapped_file import MappedFile
from quire.checkpoint.weight_files import split_files
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.system.records import dataclass

_MAX_STRING_BYTES = 1 << 24
_MAX_ARRAY_ITEMS = 1 << 24
_MAX_NESTING = 4
_MAX_RANK = 4
_MAX_ALIGNMENT = 1 << 16

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LEAST_ITEM_BYTES = {_BOOL: 1, _STRING: 8, _ARRAY: 12} | {
    kind: struct.calcsize(layout) for kind, layout in _SCALARS.items()
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as described in the file.

    Attributes:
        shape: row-major (GGUF writes it reversed).
        start: where its bytes begin in its file.
        part: number of that file among those that a model is split into.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    start: int
    nbytes: int
    part: int = 0


class GGUFDescription(Protocol):
    """What a file says of its model, before any weight is read."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def tensors(self) -> dict[str, GGUFTensor]: ...
    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor of RoPE's factors."""


class GGUFFile:
    """One mapped .gguf file, or all files of a split model.

    Attributes:
        metadata: key → number, bool, string or list of them; of the first file.
        tensors: GGUF's name → `GGUFTensor`, in the files' order.

    Raises:
        CheckpointError: a file is truncated, malformed or missing; names the file and the tensor.
        UnsupportedModelError: version 1, big-endian, or a tensor type unknown to the format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[MappedFile] = []
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        files = split_files(path)
        for part, file in enumerate(files):
            self._open(file, part, len(files))

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor as stored: a view of the file."""
        tensor = self.tensors[name]
        return self._files[tensor.part].data[tensor.start : tensor.start + tensor.nbytes]

    def release(self, name: str) -> None:
        """Remove the tensor's pages from this process's resident memory."""
        tensor = self.tensors[name]
        self._files[tensor.part].release(tensor.start, tensor.start + tensor.nbytes)

    def _open(self, path: Path, part: int, parts: int) -> None:
        file = MappedFile(path)
        reader = _HeaderReader(file)
        tensor_count, metadata_count = reader.preamble()
        metadata = reader.metadata(metadata_count)
        alignment = metadata.get("general.alignment", 32)
        if (
            type(alignment) is not int
            or not 8 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise reader.damaged(f"general.alignment {alignment!r} is not a power of two")
        for key, wanted in (("split.no", part), ("split.count", parts)):
            if metadata.get(key, wanted) not in (wanted, 0):  # a whole file may say 0 of 0
                raise reader.damaged(f"{key} is {metadata[key]!r}, not {wanted}")
        for name, tensor in reader.tensors(tensor_count, alignment).items():
            if name in self.tensors:
                raise reader.damaged(f"tensor {name!r} is in an earlier file, too")
            self.tensors[name] = replace(tensor, part=part)
        self.metadata = self.metadata or metadata
        self._files.append(file)


class _HeaderReader:
    """A cursor over the header that never leaves the file."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._at = 0

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._file.path.name}: {what}.",
            fix="The file is damaged or incomplete; download or copy it again.",
        )

    def preamble(self) -> tuple[int, int]:
        """Return the counts of tensors and of metadata entries."""
        if self._take(4) != b"GGUF":
            raise self.damaged("it does not begin with GGUF")
        version = self._unsigned(4)
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "big-endian" if swapped in (2, 3) else f"version {version}"
            raise UnsupportedModelError(
                f"{self._file.path.name}: this GGUF file is {kind}.",
                fix="Quire reads little-endian versions 2 and 3; convert it again.",
            )
        return self._unsigned(8), self._unsigned(8)

    def metadata(self, count: int) -> dict[str, Any]:
        self._expect(count, 13, "metadata entries")
        table: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("a metadata key")
            if key in table:
                raise self.damaged(f"metadata key {key!r} occurs twice")
            table[key] = self._value(self._unsigned(4), key)
        return table

    def tensors(self, count: int, alignment: int) -> dict[str, GGUFTensor]:
        self._expect(count, 32, "tensors")
        described = [self._describe_tensor() for _ in range(count)]
        data_start = -(-self._at // alignment) * alignment
        table: dict[str, GGUFTensor] = {}
        for name, kind, shape, offset in described:
            if name in table:
                raise self.damaged(f"tensor {name!r} occurs twice")
            if offset % alignment:
                raise self.damaged(f"tensor {name!r} is not aligned to {alignment} bytes")
            if shape[-1] % kind.block_size:
                raise self.damaged(
                    f"tensor {name!r}: rows of {shape[-1]} do not divide into {kind.name} "
                    f"blocks of {kind.block_size}"
                )
            nbytes = math.prod(shape) // kind.block_size * kind.block_bytes
            if data_start + offset + nbytes > self._file.size:
                raise self.damaged(f"tensor {name!r} ends beyond the end of the file")
            table[name] = GGUFTensor(name, kind, shape, data_start + offset, nbytes)
        self._check_layout(list(table.values()), data_start, alignment)
        return table

    def _check_layout(self, tensors: list[GGUFTensor], start: int, alignment: int) -> None:
        """Check that only padding lies between tensors: else a type or shape is wrong."""
        for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes)):
            if tensor.start != start:
                fault = "overlaps the one before it" if tensor.start < start else "follows a hole"
                raise self.damaged(f"tensor {tensor.name!r} {fault}")
            start += -(-tensor.nbytes // alignment) * alignment

    def _describe_tensor(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._string("a tensor's name")
        rank = self._unsigned(4)
        if not 1 <= rank <= _MAX_RANK:
            raise self.damaged(f"tensor {name!r} has {rank} dimensions")
        extents = struct.unpack(f"<{rank}Q", self._take(8 * rank))
        number, offset = self._unsigned(4), self._unsigned(8)
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise UnsupportedModelError(
                f"{self._file.path.name}: tensor {name!r} has the unknown type {number}.",
                fix="Convert the model to a type that llama.cpp still has, such as Q8_0 or Q4_K.",
            )
        return name, kind, tuple(reversed(extents)), offset

    def _value(self, kind: int, key: str, nesting: int = 0) -> Any:
        if kind in _SCALARS:
            layout = _SCALARS[kind]
            return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        if kind == _BOOL:
            return self._take(1) != b"\0"
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key, nesting + 1)
        raise self.damaged(f"metadata {key!r} has the unknown type {kind}")

    def _array(self, key: str, nesting: int) -> list[Any]:
        if nesting > _MAX_NESTING:
            raise self.damaged(f"metadata {key!r} nests more than {_MAX_NESTING} arrays")
        kind, count = self._unsigned(4), self._unsigned(8)
        if kind not in _LEAST_ITEM_BYTES:
            raise self.damaged(f"metadata {key!r} has the unknown type {kind}")
        self._expect(count, _LEAST_ITEM_BYTES[kind], f"items of {key!r}")
        if count > _MAX_ARRAY_ITEMS:
            raise self.damaged(f"metadata {key!r} claims {count} items")
        if kind in _SCALARS:
            layout = np.dtype(_SCALARS[kind])
            items: list[Any] = np.frombuffer(self._take(count * layout.itemsize), layout).tolist()
            return items
        return [self._value(kind, key, nesting) for _ in range(count)]

    def _string(self, what: str) -> str:
        length = self._unsigned(8)
        if length > _MAX_STRING_BYTES:
            raise self.damaged(f"{what} claims {length} bytes")
        # Vocabularies of some real models hold tokens that are not valid UTF-8.
        return self._take(length).decode("utf-8", errors="replace")

    def _unsigned(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, count: int) -> bytes:
        self._expect(count, 1, "bytes")
        start, self._at = self._at, self._at + count
        return self._file.bytes_at(start, self._at)

    def _expect(self, count: int, item_bytes: int, what: str) -> None:
        left = self._file.size - self._at
        if count * item_bytes > left:
            raise self.damaged(f"it claims {count} {what}, and only {left} bytes are left")
