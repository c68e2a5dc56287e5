"""gguf.py: what gguf-py reads, and typed errors for damaged files."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.weight_files import split_names
from quire.core.errors import CheckpointError, UnsupportedModelError
from tests.unit.checkpoint.make_files import write_gguf

METADATA = {
    "x__flag": True,
    "x__count": 7,
    "x__ratio": 0.25,
    "x__name": "Führer",
    "x__words": ["a", "bc", ""],
    "x__numbers": [1, 2, 3],
    "x__reals": [0.5, 1.5],
}


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(
    *entries: bytes, tensors: tuple[bytes, ...] = (), magic: bytes = b"GGUF", version: int = 3
) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(entries))
    return magic + counts + b"".join(entries) + b"".join(tensors)


def tensor(name: bytes, extents: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
    return string(name) + shape + struct.pack("<IQ", kind, offset)


def test_reads_what_gguf_py_reads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", **METADATA)
    file = GGUFFile(path)
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents(), key
    assert [t.name for t in reader.tensors] == list(file.tensors)
    for expected in reader.tensors:
        found = file.tensors[expected.name]
        assert found.shape == tuple(reversed(expected.shape.tolist()))
        assert found.start == expected.data_offset
        assert found.nbytes == expected.n_bytes
        assert file.raw(expected.name).tobytes() == expected.data.tobytes()


def test_reads_every_scalar_type_and_nested_arrays(tmp_path: Path) -> None:
    layouts = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    entries = [
        string(b"k%d" % kind) + struct.pack(f"<I{letter}", kind, 3)
        for kind, letter in layouts.items()
    ]
    inner = struct.pack("<IQ2B", 0, 2, 1, 2)
    entries.append(string(b"nested") + struct.pack("<IIQ", 9, 9, 2) + inner + inner)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(*entries, version=2))
    metadata = GGUFFile(path).metadata
    assert all(metadata[f"k{kind}"] == 3 for kind in layouts)
    assert metadata["nested"] == [[1, 2], [1, 2]]


F32_PAIR = tensor(b"t", (2,))
DEEP_ARRAY = string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"GG", "only 2 bytes are left"),
        (header(magic=b"GGML"), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors"),
        (header(struct.pack("<Q", 1 << 62)), "metadata entries"),
        (header(struct.pack("<Q", 1 << 62) + bytes(40)), "a metadata key claims"),
        (header(string(b"k") + struct.pack("<I", 99) + bytes(9)), "'k' has the unknown type 99"),
        (header(string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 61)), "items of 'k'"),
        (header(string(b"k") + struct.pack("<IIQ", 9, 77, 1)), "'k' has the unknown type 77"),
        (header(DEEP_ARRAY), "nests more than"),
        (header(*[string(b"k") + struct.pack("<IB", 0, 1) + b""] * 2), "'k' occurs twice"),
        (header(tensors=(F32_PAIR, F32_PAIR)) + bytes(64), "'t' occurs twice"),
        (header(tensors=(tensor(b"t", ()),)) + bytes(64), "'t' has 0 dimensions"),
        (header(tensors=(tensor(b"t", (1 << 40, 1 << 40)),)) + bytes(64), "'t' ends beyond"),
        (header(tensors=(tensor(b"t", (2,), offset=1 << 40),)) + bytes(64), "'t' ends beyond"),
        (header(tensors=(tensor(b"t", (2,), offset=4),)) + bytes(64), "'t' is not aligned"),
        (header(tensors=(tensor(b"t", (33,), kind=8),)) + bytes(640), "'t': rows of 33"),
        (
            header(tensors=(tensor(b"t", (16,)), tensor(b"u", (16,), offset=32))) + bytes(640),
            "'u' overlaps",
        ),
        (
            header(tensors=(tensor(b"t", (8,)), tensor(b"u", (16,), offset=64))) + bytes(640),
            "'u' follows a hole",
        ),
        (
            header(string(b"general.alignment") + struct.pack("<II", 4, 3)),
            "general.alignment 3 is not a power of two",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        GGUFFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said in str(caught.value)
    assert "broken.gguf" in str(caught.value)
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (header(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(tensors=(tensor(b"t", (32,), kind=4),)) + bytes(640), "'t' has the unknown type 4"),
    ],
)
def test_unsupported_files(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match=said):
        GGUFFile(path)


def test_truncations_are_typed_errors(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", **METADATA).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 2500, 3), *range(2500, len(whole) - 32, 4001)]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            GGUFFile(path)


def test_mutations_load_or_fail_with_a_typed_error(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", **METADATA).read_bytes()
    path = tmp_path / "mutated.gguf"
    dice = random.Random(48)
    outcomes = set()
    for _ in range(600):
        raw = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            raw[dice.randrange(2500)] = dice.choice([dice.randrange(256), 0, 0xFF])
        path.write_bytes(raw)
        try:
            file = GGUFFile(path)
            for name in file.tensors:
                file.raw(name)
            outcomes.add("loaded")
        except CheckpointError as error:
            outcomes.add("refused" if "mutated.gguf" in str(error) else "refused without a name")
    assert outcomes == {"loaded", "refused"}


def split(tmp_path: Path, count: int = 3) -> list[Path]:
    """A model in `count` files, as gguf-py splits it: the metadata in the first."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(2 * count - 1):
        writer.add_tensor(f"t{i}.weight", np.full(3, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = sorted(tmp_path.glob("*.gguf"))
    assert [file.name for file in files] == split_names("m-00001-of-00003.gguf")
    return files


def test_split_files_are_one_model(tmp_path: Path) -> None:
    files = split(tmp_path)
    file = GGUFFile(files[0])
    assert list(file.tensors) == [f"t{i}.weight" for i in range(5)]
    assert [tensor.part for tensor in file.tensors.values()] == [0, 0, 1, 1, 2]
    for i, name in enumerate(file.tensors):
        assert file.raw(name).view(np.float32).tolist() == [i] * 3
        file.release(name)
        assert file.raw(name).view(np.float32).tolist() == [i] * 3
    assert file.metadata["general.architecture"] == "llama"


def test_split_files_that_do_not_belong_together(tmp_path: Path) -> None:
    files = split(tmp_path)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf is one of 3 files"):
        GGUFFile(files[1])
    second = files[1].read_bytes()
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf: split.no is 2, not 1"):
        GGUFFile(files[0])
    files[1].write_bytes(second)
    files[2].unlink()
    with pytest.raises(CheckpointError, match=r"1 of the 3 files .* missing: m-00003-of-00003"):
        GGUFFile(files[0])


def test_a_name_that_only_looks_split(tmp_path: Path) -> None:
    for name in ("m-00001-of-00001.gguf", "m-00001-of-00000.gguf", "m-1-of-2.gguf"):
        path = tmp_path / name
        path.write_bytes(header())
        assert GGUFFile(path).tensors == {}
