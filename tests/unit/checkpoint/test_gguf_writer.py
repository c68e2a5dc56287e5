"""gguf_writer.py: files that gguf-py reads, and writes that go on where they were cut off."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_writer import GGUFWriter, PlannedTensor

KEYS = {
    "general.architecture": "llama",
    "x.flag": True,
    "x.count": 7,
    "x.negative": -7,
    "x.large": 1 << 40,
    "x.ratio": 0.25,
    "x.words": ["a", "Führer", ""],
    "x.types": [1, 3, 6],
    "x.scores": [0.5, -1.5],
    "x.flags": [True, False],
}
PLANNED = [
    PlannedTensor("a.weight", "F32", (3, 5)),
    PlannedTensor("b.weight", "Q8_0", (2, 64)),
    PlannedTensor("c.weight", "F16", (7,)),
]
DATA = {
    "a.weight": np.arange(15, dtype=np.float32).reshape(3, 5),
    "b.weight": gguf.quantize(
        np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), gguf.GGMLQuantizationType.Q8_0
    ),
    "c.weight": np.arange(7, dtype=np.float16),
}


def write(path: Path, count: int = len(PLANNED)) -> None:
    """The file, or, with fewer tensors than planned, what a killed process leaves of it."""
    writer = GGUFWriter(path, KEYS, PLANNED)
    for tensor in PLANNED[len(writer.finished) : count]:
        writer.add(tensor.name, DATA[tensor.name])
    if count == len(PLANNED):
        writer.close()
    else:
        writer.leave()


def test_gguf_py_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    reader = gguf.GGUFReader(path)
    for key, value in KEYS.items():
        assert reader.fields[key].contents() == value, key
    assert [t.name for t in reader.tensors] == list(DATA)
    for tensor in reader.tensors:
        assert tensor.data.tobytes() == DATA[tensor.name].tobytes()
        assert tensor.data_offset % 32 == 0
    file = GGUFFile(path)
    assert file.metadata == KEYS
    assert file.tensors["b.weight"].shape == (2, 64)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("cut", [0, 3])
def test_a_write_goes_on_where_it_was_cut_off(tmp_path: Path, count: int, cut: int) -> None:
    path, whole = tmp_path / "m.gguf", tmp_path / "whole.gguf"
    write(whole)
    write(path, count)
    partial = tmp_path / "m.gguf.partial"
    if cut:
        partial.write_bytes(partial.read_bytes()[:-cut])
    assert not path.exists()
    writer = GGUFWriter(path, KEYS, PLANNED)
    assert writer.finished == list(DATA)[: max(0, count - bool(cut))]
    writer.leave()
    write(path)
    assert path.read_bytes() == whole.read_bytes()


def test_another_model_s_partial_file_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, 2)
    writer = GGUFWriter(path, KEYS | {"x.count": 8}, PLANNED)
    assert writer.finished == []
    writer.leave()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", KEYS, PLANNED)
    with pytest.raises(ValueError, match=r"'b.weight' is not the next tensor"):
        writer.add("b.weight", DATA["b.weight"])
    with pytest.raises(ValueError, match=r"takes 60 bytes, not 14"):
        writer.add("a.weight", DATA["c.weight"])
    with pytest.raises(ValueError, match=r"'a.weight' was not written"):
        writer.close()
    writer.leave()
    with pytest.raises(ValueError, match="rows of 40"):
        GGUFWriter(tmp_path / "n.gguf", {}, [PlannedTensor("a", "Q8_0", (1, 40))])
    with pytest.raises(ValueError, match="occurs twice"):
        GGUFWriter(tmp_path / "n.gguf", {}, [PlannedTensor("a", "F32", (1,))] * 2)
    with pytest.raises(ValueError, match="different types"):
        GGUFWriter(tmp_path / "n.gguf", {"a": [1, "b"]}, [])  # type: ignore[list-item]
