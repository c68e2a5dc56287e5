"""What is written reads back, here and by the format's own library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from quire.checkpoint.safetensors import SafetensorsFile
from quire.checkpoint.safetensors_writer import StoredTensor, write_checkpoint, write_file
from quire.checkpoint.weight_files import INDEX, weight_files

ARRAYS: dict[str, tuple[str, npt.NDArray[Any]]] = {
    "words": ("I32", np.arange(6, dtype=np.int32).reshape(2, 3)),
    "bytes": ("U8", np.arange(5, dtype=np.uint8)),
    "turned": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3).T),
    "nothing": ("F16", np.zeros((0, 4), dtype=np.float16)),
    "scalar": ("I64", np.array(7, dtype=np.int64)),
}


def tensors() -> list[StoredTensor]:
    return [
        StoredTensor(name, dtype, values.shape, values.copy)
        for name, (dtype, values) in ARRAYS.items()
    ]


def test_a_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, tensors(), {"format": "pt", "why": "a test"})
    ours, theirs = SafetensorsFile(path), load_file(path)
    assert ours.metadata["why"] == "a test"
    for name, (_, values) in ARRAYS.items():
        np.testing.assert_array_equal(ours.read(name), values)
        np.testing.assert_array_equal(theirs[name], values)


def test_order_makes_no_difference(tmp_path: Path) -> None:
    write_file(tmp_path / "one", tensors())
    write_file(tmp_path / "two", tensors()[::-1])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_shards_and_their_index(tmp_path: Path) -> None:
    files = write_checkpoint(tmp_path, tensors(), 30)
    assert len(files) == 3, [file.name for file in files]
    assert weight_files(tmp_path) == files
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(v.nbytes for _, v in ARRAYS.values())
    for name, home in index["weight_map"].items():
        np.testing.assert_array_equal(load_file(tmp_path / home)[name], ARRAYS[name][1])


def test_a_wrong_size_leaves_no_file(tmp_path: Path) -> None:
    wrong = StoredTensor("x", "F32", (3,), lambda: np.zeros(2, dtype=np.float32))
    with pytest.raises(ValueError, match="x has 8 bytes, not 12"):
        write_file(tmp_path / "x", [wrong])
    assert not (tmp_path / "x").exists()
