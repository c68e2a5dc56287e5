"""weights.py: which files make up a model, and what they hold."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from quire.checkpoint.source import resolve
from quire.checkpoint.weight_files import INDEX, weight_files
from quire.checkpoint.weights import LabelWeights
from quire.core.errors import CheckpointError, ModelNotFoundError
from quire.models.weights.checkpoint import open_weights
from tests.unit.checkpoint.make_files import write_folder, write_safetensors

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(4, dtype=np.float16)


def shards(folder: Path, count: int = 2) -> list[Path]:
    write_folder(folder)
    (folder / "model.safetensors").unlink()
    return [
        write_safetensors(folder / f"model-{i:05d}-of-{count:05d}.safetensors", **{f"t{i}": A + i})
        for i in range(1, count + 1)
    ]


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_single_file(tmp_path: Path) -> None:
    weights = open_weights(resolve(str(write_folder(tmp_path, a=A, b=B))))
    assert set(weights.tensors) == {"a", "b"}
    assert weights.nbytes == A.nbytes + B.nbytes
    assert np.array_equal(weights.read("a"), A)
    with pytest.raises(KeyError):
        weights.read("c")


def test_shards_by_index(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    write_index(tmp_path, {"t1": paths[0].name, "t2": paths[1].name})
    write_safetensors(tmp_path / "consolidated.safetensors", t1=A)  # nobody indexes it
    weights = open_weights(resolve(str(tmp_path)))
    assert np.array_equal(weights.read("t2"), A + 2)
    assert weights.tensors["t2"].file == paths[1]


def test_shards_without_an_index(tmp_path: Path) -> None:
    assert weight_files(tmp_path / "x" if shards(tmp_path / "x") else tmp_path) == sorted(
        (tmp_path / "x").glob("*.safetensors")
    )


def test_shards_of_another_format_are_left_alone(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    write_safetensors(tmp_path / "consolidated-00001-of-00001.safetensors", t1=A)
    assert weight_files(tmp_path) == paths


def test_an_old_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Transformers reads it."""
    write_index(write_folder(tmp_path, a=A), {"a": "model-00001-of-00001.safetensors"})
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    assert "names files that are not there" in caplog.text


@pytest.mark.parametrize("indexed", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, indexed: bool) -> None:
    paths = shards(tmp_path, 3)
    if indexed:
        write_index(tmp_path, {f"t{i}": path.name for i, path in enumerate(paths)})
    paths[1].unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 shards .* model-00002-of-00003"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "..", "", 3, "a/b"])
def test_an_index_cannot_leave_the_folder(tmp_path: Path, name: object) -> None:
    shards(tmp_path)
    write_index(tmp_path, {"t": name})
    with pytest.raises(CheckpointError, match="not in the model's folder"):
        weight_files(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [1]])
def test_an_index_without_a_map(tmp_path: Path, weight_map: object) -> None:
    shards(tmp_path)
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="no weight_map"):
        weight_files(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    first, second = shards(tmp_path)
    write_safetensors(second, t1=A)
    with pytest.raises(CheckpointError, match=f"'t1' is in both {first.name} and {second.name}"):
        open_weights(resolve(str(tmp_path)))


def test_several_files_and_no_index(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one.safetensors")
    assert weight_files(tmp_path) == [tmp_path / "one.safetensors"]
    write_safetensors(tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"holds 2 .safetensors files and no"):
        weight_files(tmp_path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\0.")
    with pytest.raises(CheckpointError, match=r"only a pickled checkpoint \(pytorch_model.bin\)"):
        weight_files(tmp_path)


def test_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no .safetensors file"):
        weight_files(tmp_path)


def test_a_preset_has_no_weights() -> None:
    with pytest.raises(ModelNotFoundError, match="--load-format dummy"):
        open_weights(resolve("gpt2", load_format="dummy"))


def test_aliases_of_tied_weights(tmp_path: Path) -> None:
    write_folder(tmp_path)
    save_file(
        {"lm_head.weight": A, "b": B},
        tmp_path / "model.safetensors",
        {"format": "pt", "model.embed_tokens.weight": "lm_head.weight", "b": "lm_head.weight"},
    )
    weights = open_weights(resolve(str(tmp_path)))
    assert weights.aliases == {"model.embed_tokens.weight": "lm_head.weight"}


def test_real_checkpoint(shared_dir: Path) -> None:
    weights = open_weights(resolve(str(shared_dir / "models" / "tinystories-656k")))
    assert weights.aliases == {"model.embed_tokens.weight": "lm_head.weight"}
    assert weights.read("lm_head.weight").shape == (2048, 128)


def test_real_gguf(shared_dir: Path) -> None:
    path = shared_dir / "models" / "stories260k" / "stories260K.gguf"
    weights = open_weights(resolve(str(path)))
    assert weights.tensors["model.layers.4.self_attn.k_proj.weight"].shape == (32, 64)
    assert all(np.isfinite(weights.read(name)).all() for name in weights.tensors)


@pytest.mark.parametrize("other", ["lm_head.weight_scale", "lm_head.bias"])
def test_a_classifier_is_made_of_one_plain_matrix(tmp_path: Path, other: str) -> None:
    tensors = {"embed_tokens.weight": A, "lm_head.weight": A + 1}
    weights = open_weights(resolve(str(write_folder(tmp_path, **tensors))))
    made = LabelWeights(weights, "score.weight", [1], less=False)
    np.testing.assert_array_equal(made.read("score.weight"), (A + 1)[1:2])
    weights = open_weights(resolve(str(write_folder(tmp_path, **tensors, **{other: A}))))
    with pytest.raises(CheckpointError, match=other):
        LabelWeights(weights, "score.weight", [1], less=False)


def test_an_index_that_is_a_pipe_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    os.mkfifo(tmp_path / INDEX)
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
