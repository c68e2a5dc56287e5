"""safetensors.py: what the reference implementation reads, and typed errors for the rest."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from quire.checkpoint.safetensors import SafetensorsFile
from quire.core.errors import CheckpointError, UnsupportedModelError
from tests.unit.checkpoint.make_files import write_safetensors


def write_raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(start: int, stop: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_reads_what_the_reference_implementation_reads(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "model.safetensors")
    file = SafetensorsFile(path)
    expected = load_file(path)
    assert file.tensors.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(file.read(name), values)
        assert file.read(name).dtype == values.dtype
        assert file.tensors[name].shape == values.shape
        assert file.tensors[name].nbytes == values.nbytes


@pytest.mark.parametrize(
    ("stored", "name", "one"),
    [
        ("BF16", "bfloat16", b"\x80\x3f"),
        ("F8_E4M3", "float8_e4m3fn", b"\x38"),
        ("F8_E5M2", "float8_e5m2", b"\x3c"),
    ],
)
def test_floats_that_numpy_lacks(tmp_path: Path, stored: str, name: str, one: bytes) -> None:
    data = one + bytes(len(one))
    path = write_raw(tmp_path / "m.safetensors", {"a": entry(0, len(data), [2], stored)}, data)
    values = SafetensorsFile(path).read("a")
    assert str(values.dtype) == name
    assert values.astype(float).tolist() == [1.0, 0.0]


def test_unaligned_data_is_copied(tmp_path: Path) -> None:
    header = json.dumps({"a": entry(0, 4, [1])}).encode()
    header += b" " * (-len(header) % 4 + 1)
    values = SafetensorsFile(write_raw(tmp_path / "m.safetensors", header, bytes(4))).read("a")
    assert values.flags.aligned


def test_arrays_are_writable_and_private(tmp_path: Path) -> None:
    """torch.from_numpy warns about read-only arrays; the file must not change all the same."""
    path = write_safetensors(tmp_path / "model.safetensors")
    before = path.read_bytes()
    SafetensorsFile(path).read("a.weight")[:] = 7
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"[1]", b"", "not a JSON object"),
        (b"{", b"", "cannot be read"),
        (b"\xff{}", b"", "cannot be read"),
        (b'{"a":' * 20_000, b"", "cannot be read"),
        (b'{"a":' + b"9" * 6000 + b"}", b"", "cannot be read"),
        (b'{"a":1,"a":2}', b"", "'a' occurs twice"),
        ({"__metadata__": {"x": 1}}, b"", "__metadata__"),
        ({"a": 1}, b"", "'a' has no description"),
        ({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), "'a' has no dtype"),
        ({"a": entry(0, 4, [-1])}, bytes(4), "'a' has a malformed shape"),
        ({"a": entry(0, 4, [True])}, bytes(4), "'a' has a malformed shape"),
        ({"a": entry(0, 4, [1] * 99)}, bytes(4), "'a' has a malformed shape"),
        ({"a": entry(-4, 4, [2])}, bytes(4), "'a' has malformed data_offsets"),
        ({"a": entry(0, 4, [2])}, bytes(4), "'a' of shape [2] and dtype F32 needs 8 bytes"),
        ({"a": entry(0, 1 << 42, [1 << 40])}, bytes(4), "'a' ends beyond the end"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12), "'b' overlaps"),
        ({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, bytes(12), "'b' follows a hole"),
        ({"a": entry(0, 4, [1])}, bytes(5), "1 bytes follow the last tensor"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, header: object, data: bytes, said: str) -> None:
    path = write_raw(tmp_path / "broken.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(path)
    assert said in str(caught.value)
    assert "broken.safetensors" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("length", [1 << 20, 1 << 63, (1 << 64) - 1])
def test_a_lying_header_length_allocates_nothing(tmp_path: Path, length: int) -> None:
    path = write_raw(tmp_path / "m.safetensors", {}, length=length)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="the header claims"):
        SafetensorsFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"model.safetensors is a pipe\."):
        SafetensorsFile(path)


def test_unknown_dtype(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.safetensors", {"a": entry(0, 4, [1], "F4")}, bytes(4))
    with pytest.raises(UnsupportedModelError, match="'a' has the unknown dtype 'F4'"):
        SafetensorsFile(path)


def test_every_truncation_is_a_typed_error(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "whole.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


def test_mutations_load_or_fail_with_a_typed_error(tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "whole.safetensors").read_bytes()
    path = tmp_path / "mutated.safetensors"
    dice = random.Random(47)
    outcomes = set()
    for _ in range(600):
        raw = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            raw[dice.randrange(len(raw) - 60)] = dice.choice([dice.randrange(256), 0x39, 0x22])
        path.write_bytes(raw)
        try:
            file = SafetensorsFile(path)
            for name in file.tensors:
                file.read(name)
            outcomes.add("loaded")
        except CheckpointError as error:
            outcomes.add("refused" if path.name in str(error) else "refused without a name")
    assert outcomes == {"loaded", "refused"}
