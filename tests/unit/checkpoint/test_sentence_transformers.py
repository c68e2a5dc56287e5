"""sentence-transformers' files beside a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.sentence_transformers import SentenceTransformer, read_sentence_transformer
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.model_config import DenseConfig

_KIND = "sentence_transformers.models."
_MODULES = [
    {"path": "", "type": f"{_KIND}Transformer"},
    {"path": "1_Pooling", "type": f"{_KIND}Pooling"},
]
_MEAN = {"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True}


def write(folder: Path, modules: Any, pooling: Any = _MEAN, **files: Any) -> Path:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_folder_without_modules(tmp_path: Path) -> None:
    assert read_sentence_transformer(tmp_path) is None


def test_a_reranker_that_answers_with_a_token_is_no_embedder(tmp_path: Path) -> None:
    score = {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.LogitScore"}
    assert read_sentence_transformer(write(tmp_path, [_MODULES[0], score])) is None


def test_everything(tmp_path: Path) -> None:
    folder = write(
        tmp_path, [*_MODULES, {"path": "2_Normalize", "type": f"{_KIND}Normalize"}],
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        sentence_bert_config={"max_seq_length": 40},
        config_sentence_transformers={"prompts": {"query": "q: "}, "default_prompt_name": "query"},
    )  # fmt: skip
    assert read_sentence_transformer(folder) == SentenceTransformer(
        "CLS", True, (), 40, {"query": "q: "}, "query"
    )


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [(_MEAN, "MEAN"), ({"pooling_mode_lasttoken": True}, "LAST"), ({"pooling_mode": "cls"}, "CLS")],
)
def test_ways_to_pool(pooling: Any, expected: str, tmp_path: Path) -> None:
    found = read_sentence_transformer(write(tmp_path, _MODULES, pooling))
    assert (found.pooling_type, found.normalize) == (expected, False)


@pytest.mark.parametrize(
    "pooling",
    [
        {},
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "max"},
        {**_MEAN, "include_prompt": False},
    ],
)
def test_other_ways_to_pool_are_refused(pooling: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"1_Pooling/config\.json"):
        read_sentence_transformer(write(tmp_path, _MODULES, pooling))


def test_other_modules_are_refused(tmp_path: Path) -> None:
    modules = [*_MODULES, {"path": "2_LSTM", "type": f"{_KIND}LSTM"}]
    with pytest.raises(UnsupportedModelError, match="'LSTM'"):
        read_sentence_transformer(write(tmp_path, modules))


_DENSE = {"path": "2_Dense", "type": f"{_KIND}Dense"}
_NORMALIZE = {"path": "3_Normalize", "type": f"{_KIND}Normalize"}
_TANH = "torch.nn.modules.activation.Tanh"


def write_dense(folder: Path, modules: Any, **changes: Any) -> Path:
    (folder / "2_Dense").mkdir()
    config = {"in_features": 4, "out_features": 6, "activation_function": _TANH} | changes
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    return write(folder, modules)


def test_a_dense_layer(tmp_path: Path) -> None:
    dropout = {"path": "", "type": f"{_KIND}Dropout"}
    found = read_sentence_transformer(
        write_dense(tmp_path, [*_MODULES, dropout, _DENSE, _NORMALIZE])
    )
    file = "2_Dense/model.safetensors"  # other machines may have the folder elsewhere
    assert found.dense == (DenseConfig(file, 6, 4, True, "tanh"),)


@pytest.mark.parametrize(
    ("modules", "changes", "error", "named"),
    [
        ([*_MODULES, _NORMALIZE, _DENSE], {}, UnsupportedModelError, "between"),
        ([_MODULES[0], _DENSE, _MODULES[1]], {}, UnsupportedModelError, "between"),
        ([*_MODULES, _DENSE], {"activation_function": "x.Mish"}, UnsupportedModelError, "'Mish'"),
        ([*_MODULES, _DENSE], {"module_input_name": "token_embeddings"}, UnsupportedModelError,
         "token_embeddings"),
        ([*_MODULES, _DENSE], {"in_features": "4"}, CheckpointError, "in_features"),
        ([*_MODULES, _DENSE], {"bias": 1}, CheckpointError, "bias"),
    ],
)  # fmt: skip
def test_dense_layers_that_are_refused(
    modules: Any, changes: Any, error: type[Exception], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=named):
        read_sentence_transformer(write_dense(tmp_path, modules, **changes))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sentence_bert_config", {"max_seq_length": 0}),
        ("config_sentence_transformers", {"prompts": ["q"]}),
        ("config_sentence_transformers", {"default_prompt_name": "query"}),
    ],
)
def test_damaged_files_are_named(name: str, content: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=name):
        read_sentence_transformer(write(tmp_path, _MODULES, **{name: content}))


@pytest.mark.parametrize("modules", [{}, ["x"]])
def test_damaged_modules(modules: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_sentence_transformer(write(tmp_path, modules))
