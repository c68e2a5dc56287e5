"""Rows 47, 49 and 51: damaged, wrong or missing files of a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from quire.core.errors import QuireError
from quire.frontend.llm import LLM
from tests.e2e.tiny_model import tiny_weights

WEIGHTS = "model.safetensors"
Change = Callable[[dict[str, np.ndarray]], object]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that the test may spoil."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def failure(model: Path) -> str:
    """What a user is told who loads `model`."""
    with pytest.raises(QuireError) as caught:
        LLM(str(model), kv_cache_memory_bytes=2**20).shutdown()
    return str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:4],
        lambda data: b"",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"x" * 40 + data[48:],
        lambda data: data.replace(b'"data_offsets":[', b'"data_offsets":[9', 1),
        lambda data: data.replace(b'"F32"', b'"Q99"', 1),
    ],
    ids=["half", "header", "empty", "length", "json", "offsets", "dtype"],
)
def test_row_47_damaged_safetensors(model: Path, spoil: Callable[[bytes], bytes]) -> None:
    file = model / WEIGHTS
    file.write_bytes(spoil(file.read_bytes()))
    assert WEIGHTS in failure(model)


def rewrite(model: Path, change: Change) -> None:
    weights = tiny_weights()
    change(weights)
    save_file(weights, model / WEIGHTS)


def test_row_49_missing_tensor(model: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(model, lambda weights: weights.pop(name))
    assert name in failure(model)


def test_row_49_wrong_shape(model: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    rewrite(model, lambda weights: weights.update({name: np.zeros((16, 64), np.float32)}))
    message = failure(model)
    for part in (name, "[16, 64]", "[32, 64]", WEIGHTS):
        assert part in message


def test_row_49_unexpected_tensor(model: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.extra"
    rewrite(model, lambda weights: weights.update({name: np.zeros(3, np.float32)}))
    assert name in failure(model)


def test_row_49_duplicate_tensor(model: Path) -> None:
    name = "model.norm.weight"
    save_file({name: np.ones(64, np.float32)}, model / "model-extra.safetensors")
    files = dict.fromkeys(tiny_weights(), WEIGHTS)
    index = {"weight_map": {**files, name: "model-extra.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert name in failure(model)


def test_row_51_no_config(model: Path) -> None:
    (model / "config.json").unlink()
    message = failure(model)
    assert "config.json" in message
    assert "Name the folder of a Hugging Face model" in message


def test_row_51_damaged_config(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama"')
    message = failure(model)
    assert "config.json" in message
    assert "Download or copy the file again" in message


def test_row_51_no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert "Add the model's tokenizer files, or name a tokenizer" in failure(model)


def shorten_vocabulary(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))


def test_row_51_vocabulary_of_config_and_weights(model: Path) -> None:
    shorten_vocabulary(model)
    message = failure(model)
    for part in ("embed_tokens", "[200, 64]", "[258, 64]", "config.json of the same model"):
        assert part in message


def test_row_51_vocabulary_of_model_and_tokenizer(model: Path) -> None:
    shorten_vocabulary(model)
    rewrite(model, lambda w: w.update({n: t[:200].copy() for n, t in w.items() if len(t) == 258}))
    message = failure(model)
    for part in ("258 tokens", "only 200", "--tokenizer"):
        assert part in message


def test_row_51_unknown_architecture(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    spoiled = {**config, "model_type": "xyz9", "architectures": ["Xyz9Model"]}
    (model / "config.json").write_text(json.dumps(spoiled))
    message = failure(model)
    assert "yz9" in message
    assert "llama" in message.lower()
