"""Safetensors files: https://github.com/huggingface/safetensors (format version 0.x).

    [8 bytes: length n of the header, little-endian][n bytes: JSON][tensor data]

The header is untrusted: every number in it is checked against the file before it is used.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.mapped_file import MappedFile
from quire.checkpoint.tensor_info import TensorInfo
from quire.core.dtypes import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.system.records import dataclass

MAX_HEADER_BYTES = 100_000_000
"""The reference implementation's own limit."""

_MAX_RANK = 8
_MAX_BYTES = 2**62
"""Of a tensor, its empty dimensions counted as one: what an array can have."""

DTYPES: dict[str, npt.DTypeLike] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": BFLOAT16,
    "F8_E4M3": FLOAT8_E4M3,
    "F8_E5M2": FLOAT8_E5M2,
    "F8_E8M0": "u1",  # the exponents
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
"""The format's names for dtypes → numpy's."""


@dataclass(frozen=True, slots=True)
class _Entry:
    info: TensorInfo
    start: int
    stop: int


class SafetensorsFile:
    """One mapped .safetensors file.

    Attributes:
        tensors: name → `TensorInfo`, in the order of the header.
        metadata: the header's `__metadata__`: free text by the writer.

    Raises:
        CheckpointError: the file is truncated or malformed; names the file and the tensor.
        UnsupportedModelError: a tensor's dtype is unknown.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        header, self._data_start = self._read_header()
        self.metadata = self._check_metadata(header.pop("__metadata__", {}))
        self._entries = {name: self._check_entry(name, value) for name, value in header.items()}
        self._check_layout()
        self.tensors = {name: entry.info for name, entry in self._entries.items()}

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return the tensor, without a copy if its bytes are aligned."""
        entry = self._entries[name]
        raw = self._file.data[self._data_start + entry.start : self._data_start + entry.stop]
        values = raw.view(DTYPES[entry.info.dtype]).reshape(entry.info.shape)
        return values if values.flags.aligned else values.copy()

    def release(self, name: str) -> None:
        """Remove the tensor's pages from this process's resident memory."""
        entry = self._entries[name]
        self._file.release(self._data_start + entry.start, self._data_start + entry.stop)

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._file.path.name}: {what}.",
            fix="The file is damaged or incomplete; download or copy it again.",
        )

    def _read_header(self) -> tuple[dict[str, Any], int]:
        if self._file.size < 8:
            raise self._damaged(f"{self._file.size} bytes are too few for a safetensors file")
        length = int.from_bytes(self._file.bytes_at(0, 8), "little")
        if length > min(self._file.size - 8, MAX_HEADER_BYTES):
            raise self._damaged(f"the header claims {length} bytes, the file has {self._file.size}")
        try:
            text = self._file.bytes_at(8, 8 + length).decode()
            header = json.loads(text, object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"the header cannot be read ({error})") from error
        if not isinstance(header, dict):
            raise self._damaged("the header is not a JSON object")
        return header, 8 + length

    def _check_metadata(self, metadata: Any) -> dict[str, str]:
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self._damaged("__metadata__ is not a table of strings")
        return metadata

    def _check_entry(self, name: str, value: Any) -> _Entry:
        if not isinstance(value, dict):
            raise self._damaged(f"tensor {name!r} has no description")
        dtype: Any = value.get("dtype")
        shape: Any = value.get("shape")
        offsets: Any = value.get("data_offsets")
        if not isinstance(dtype, str):
            raise self._damaged(f"tensor {name!r} has no dtype")
        if dtype not in DTYPES:
            raise UnsupportedModelError(
                f"{self._file.path.name}: tensor {name!r} has the unknown dtype {dtype!r}.",
                fix=f"Convert it to one of {', '.join(DTYPES)}.",
            )
        if not _is_naturals(shape) or len(shape) > _MAX_RANK:
            raise self._damaged(f"tensor {name!r} has a malformed shape")
        if not _is_naturals(offsets) or len(offsets) != 2:
            raise self._damaged(f"tensor {name!r} has malformed data_offsets")
        start, stop = offsets
        item = np.dtype(DTYPES[dtype]).itemsize
        nbytes = item * math.prod(shape)
        if item * math.prod(extent or 1 for extent in shape) > _MAX_BYTES:
            raise self._damaged(f"tensor {name!r} has the impossible shape {shape}")
        if stop - start != nbytes:
            raise self._damaged(
                f"tensor {name!r} of shape {shape} and dtype {dtype} needs {nbytes} bytes, "
                f"its offsets span {stop - start}"
            )
        if stop > self._file.size - self._data_start:
            raise self._damaged(f"tensor {name!r} ends beyond the end of the file")
        info = TensorInfo(name, dtype, tuple(shape), nbytes, self._file.path)
        return _Entry(info, start, stop)

    def _check_layout(self) -> None:
        """Check that tensors cover the data exactly: no overlap, no hole, no trailing bytes."""
        position = 0
        by_offset = sorted(self._entries.items(), key=lambda item: (item[1].start, item[1].stop))
        for name, entry in by_offset:
            if entry.start != position:
                fault = "overlaps the one before it" if entry.start < position else "follows a hole"
                raise self._damaged(f"tensor {name!r} {fault}")
            position = entry.stop
        if self._data_start + position != self._file.size:
            surplus = self._file.size - self._data_start - position
            raise self._damaged(f"{surplus} bytes follow the last tensor")


def _is_naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{key!r} occurs twice")
        table[key] = value
    return table
