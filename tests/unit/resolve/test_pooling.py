"""Which models pool, and how: flags and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.presets import preset_config
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, QuireError, UnsupportedModelError
from quire.resolve.engine import engine_args, resolve
from quire.system.hardware import detect


def config_of(model: str = "bge-small-en-v1.5", **flags: Any) -> EngineConfig:
    return resolve(engine_args(model, {"load_format": "dummy", **flags}), detect()).config


def changed(folder: Path, preset: str, **changes: Any) -> str:
    """A folder with a preset's config.json, some fields of it others."""
    config = {**(preset_config(preset) or {}), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_an_encoder_pools_and_keeps_nothing() -> None:
    config = config_of()
    assert (config.pooling.task, config.pooling.pooling_type) == ("embed", "CLS")
    assert config.pooling.normalize
    assert not config.enable_prefix_caching
    assert config.scheduler.whole_prompts
    assert config.scheduler.max_num_batched_tokens >= config.scheduler.max_model_len == 512
    assert config.model.kv_layers == [0]


def test_a_decoder_pools_where_it_is_told_to() -> None:
    assert config_of("qwen3-0.6b").pooling is None
    config = config_of("qwen3-0.6b", runner="pooling")
    assert config.pooling.pooling_type == "LAST"
    assert config.enable_prefix_caching
    assert not config.model.lm_head
    assert config_of("qwen3-0.6b", convert="embed").pooling == config.pooling
    mean = config_of("qwen3-0.6b", runner="pooling", pooler_config='{"pooling_type": "mean"}')
    assert not mean.enable_prefix_caching


@pytest.mark.parametrize(
    ("labels", "said", "activation"),
    [
        ({"0": "a"}, None, "sigmoid"),
        ({"0": "a", "1": "b"}, None, "softmax"),
        ({"0": "a"}, "torch.nn.modules.linear.Identity", "none"),
    ],
)
def test_classifiers(labels: Any, said: str | None, activation: str, tmp_path: Path) -> None:
    folder = changed(
        tmp_path, "bge-small-en-v1.5", architectures=["BertForSequenceClassification"],
        id2label=labels, sbert_ce_default_activation_function=said,
    )  # fmt: skip
    config = config_of(folder)
    assert config.pooling.task == "classify"
    assert config.pooling.activation == activation
    assert config.model.num_labels == len(labels)
    assert config_of(folder, convert="embed").model.num_labels == 0


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("labels", "said", "activation"),
    [
        (1, {}, "sigmoid"),
        (1, {"problem_type": "regression"}, "none"),
        (1, {"problem_type": "multi_label_classification"}, "sigmoid"),
        (1, {"problem_type": None}, "sigmoid"),
        (3, {"problem_type": "regression"}, "none"),
        (3, {"problem_type": "multi_label_classification"}, "sigmoid"),
        (3, {"problem_type": "single_label_classification"}, "softmax"),
        (1, {"sentence_transformers": {"activation_fn": IDENTITY}}, "none"),
        (1, {"sentence_transformers": {"version": "5"}}, "sigmoid"),
        (3, {"sentence_transformers": {"activation_fn": "x.Softmax"}}, "softmax"),
        (1, {"sbert_ce_default_activation_function": "x.Sigmoid"}, "sigmoid"),
        (
            1,
            {"sentence_transformers": {"activation_fn": IDENTITY}, "problem_type": "regression"},
            "none",
        ),
    ],
)
def test_activations(labels: int, said: dict[str, Any], activation: str, tmp_path: Path) -> None:
    names = {str(i): str(i) for i in range(labels)}
    kind = {"architectures": ["BertForSequenceClassification"], "id2label": names}
    pooling = config_of(changed(tmp_path, "bge-small-en-v1.5", **kind, **said)).pooling
    assert pooling.activation == activation


def test_a_cross_encoders_activation_goes_before_its_problem_type(tmp_path: Path) -> None:
    folder = changed(
        tmp_path, "bge-small-en-v1.5", architectures=["BertForSequenceClassification"],
        num_labels=1, id2label=None, problem_type="multi_label_classification",
        sbert_ce_default_activation_function=IDENTITY,
    )  # fmt: skip
    found = resolve(engine_args(folder, {"load_format": "dummy"}), detect())
    assert found.config.pooling.activation == "none"
    assert any("problem_type" in note for note in found.notes)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"problem_type": "multi_label"}, "problem_type"),
        ({"problem_type": ["regression"]}, "problem_type"),
        ({"problem_type": "single_label_classification"}, "problem_type"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation_fn"),
        ({"classifier_pooling": "max"}, "classifier_pooling"),
    ],
)
def test_unknown_heads_are_refused(said: dict[str, Any], name: str, tmp_path: Path) -> None:
    kind = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}}
    with pytest.raises(QuireError) as caught:
        config_of(changed(tmp_path, "bge-small-en-v1.5", **kind, **said))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("model", "flags", "name"),
    [
        ("bge-small-en-v1.5", {"runner": "generate"}, "--runner"),
        ("bge-small-en-v1.5", {"max_num_batched_tokens": 500}, "max_num_batched_tokens"),
        ("bge-small-en-v1.5", {"swap_space": 1.0}, "swap_space"),
        ("bge-small-en-v1.5", {"async_scheduling": True}, "async_scheduling"),
        ("bge-small-en-v1.5", {"num_scheduler_steps": 2}, "num_scheduler_steps"),
        ("bge-small-en-v1.5", {"enable_prompt_embeds": True}, "enable_prompt_embeds"),
        ("bge-small-en-v1.5", {"pooler_config": "LAST"}, "pooler_config"),
        ("bge-small-en-v1.5", {"pooler_config": {"pooling_type": "MAX"}}, "pooler_config"),
        ("bge-small-en-v1.5", {"pooler_config": {"normalise": True}}, "pooler_config"),
        ("bge-small-en-v1.5", {"pooler_config": {"normalize": 1}}, "pooler_config"),
        ("qwen3-0.6b", {"pooler_config": {"normalize": True}}, "--runner"),
        ("qwen3-0.6b", {"runner": "pooling", "convert": "none"}, "--convert"),
    ],
)
def test_what_does_not_fit_is_refused(model: str, flags: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(model, **flags)
    assert name in (caught.value.param or "") + str(caught.value)


def test_models_that_pool_otherwise_are_refused(tmp_path: Path) -> None:
    for changes in ({"position_embedding_type": "relative_key"}, {"is_decoder": True}):
        with pytest.raises(UnsupportedModelError):
            config_of(changed(tmp_path, "bge-small-en-v1.5", **changes))
    for kind, runner in (("Gemma2", "pooling"), ("Gemma3", "generate")):
        both: dict[str, Any] = {"use_bidirectional_attention": True}
        folder = changed(tmp_path, "gemma-3-1b", architectures=[f"{kind}ForCausalLM"], **both)
        with pytest.raises(UnsupportedModelError, match="bidirectional"):
            config_of(folder, runner=runner)


def test_a_decoder_that_looks_both_ways(tmp_path: Path) -> None:
    config = config_of(changed(tmp_path, "qwen3-0.6b", is_causal=False), runner="pooling",
                       max_model_len=512)  # fmt: skip
    assert not config.model.causal
    assert config.pooling.pooling_type == "MEAN"


def test_layers_that_only_look_back_cannot_look_both_ways(tmp_path: Path) -> None:
    """Found by `tests.fuzz.pooling`: such a model was loaded, or failed with a KeyError."""
    folder = changed(tmp_path, "qwen3-next-4l", is_causal=False)
    with pytest.raises(UnsupportedModelError, match="recurrent layers"):
        config_of(folder, runner="pooling", max_model_len=512)


def test_a_decoder_that_looks_both_ways_generates_nothing(tmp_path: Path) -> None:
    for value in (False, None):
        folder = changed(tmp_path, "qwen3-0.6b", is_causal=value)
        with pytest.raises(UnsupportedModelError, match="is_causal"):
            config_of(folder)
    kind = {"architectures": ["Qwen3ForSequenceClassification"], "is_causal": False}
    pooling = config_of(changed(tmp_path, "qwen3-0.6b", **kind), max_model_len=512).pooling
    assert pooling.pooling_type == "LAST"


def test_sizes_that_embeddings_may_have(tmp_path: Path) -> None:
    for said, expected in (
        ({}, None), ({"is_matryoshka": True}, ()), ({"matryoshka_dimensions": [64, 128]}, (64, 128))
    ):  # fmt: skip
        pooling = config_of(changed(tmp_path, "bge-small-en-v1.5", **said)).pooling
        assert pooling.matryoshka == expected
