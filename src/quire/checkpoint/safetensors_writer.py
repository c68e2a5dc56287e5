"""Write safetensors: one file, or shards with their index; torch-free.

A tensor's bytes are computed when they are written, so only one tensor is in memory at a time. A
file gets its final name only when it is completely on disk.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.safetensors import DTYPES
from quire.checkpoint.weight_files import INDEX
from quire.system.records import dataclass

_ITEM_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()}
_METADATA = {"format": "pt"}
"""Metadata that Transformers requires."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor to be written.

    Attributes:
        dtype: the format's name for it: "BF16", "I32" …
        make: returns its values, or any array with the same number of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], npt.NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


def write_file(
    path: Path, tensors: Sequence[StoredTensor], metadata: dict[str, str] | None = None
) -> None:
    """Write one file, the same bytes for the same tensors in any order."""
    # Wide types first, so that every tensor is aligned to its item size.
    ordered = sorted(tensors, key=lambda tensor: (-_ITEM_BYTES[tensor.dtype], tensor.name))
    header: dict[str, Any] = {"__metadata__": _METADATA if metadata is None else metadata}
    start = 0
    for tensor in ordered:
        stop = start + tensor.nbytes
        entry = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, stop]}
        header[tensor.name] = entry
        start = stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in ordered:
            values = tensor.make()
            if values.nbytes != tensor.nbytes:
                raise ValueError(f"{tensor.name} has {values.nbytes} bytes, not {tensor.nbytes}")
            file.write(values.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_checkpoint(
    folder: Path, tensors: Sequence[StoredTensor], max_shard_bytes: int
) -> list[Path]:
    """Write a model's weights: `model.safetensors`, or shards and an index.

    Tensors keep their order across shards. A tensor larger than `max_shard_bytes` gets its own
    shard.
    """
    shards = _shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        write_file(folder / "model.safetensors", shards[0])
        return [folder / "model.safetensors"]
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_file(folder / name, shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
        "weight_map": {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return [folder / name for name in names]


def _shards(tensors: Sequence[StoredTensor], most: int) -> list[list[StoredTensor]]:
    shards: list[list[StoredTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards
