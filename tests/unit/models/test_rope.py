"""RoPE in every spelling of config.json: Transformers' angles, a warning, or a refusal by name."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from quire.core.errors import QuireError
from quire.core.model_config import RopeConfig
from quire.layers.rotary import rope_table
from quire.models.registry import model_config
from quire.models.rope import overridden

MAX_LEN = 128
HEAD_DIM = 16
BASE: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": HEAD_DIM,
    "max_position_embeddings": MAX_LEN, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CLASSES = {
    "llama": ("LlamaForCausalLM", LlamaRotaryEmbedding),
    "mistral": ("MistralForCausalLM", LlamaRotaryEmbedding),
    "qwen2": ("Qwen2ForCausalLM", LlamaRotaryEmbedding),
    "phi3": ("Phi3ForCausalLM", Phi3RotaryEmbedding),
    "gemma3_text": ("Gemma3ForCausalLM", Gemma3RotaryEmbedding),
    "modernbert": ("ModernBertModel", ModernBertRotaryEmbedding),
}
OF_KIND: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"]}
}
TRAINED = "original_max_position_embeddings"
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"short_factor": [1.0 + i / 4 for i in range(8)], "long_factor": [2.0] * 8}
LONG = {"rope_type": "longrope"} | LISTS
DEFAULT = {"rope_type": "default"}
FULL, SLIDING = "full_attention", "sliding_attention"


def config_of(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    names = {"model_type": kind, "architectures": [CLASSES[kind][0]]}
    return deepcopy(BASE | names | OF_KIND.get(kind, {}) | fields)


def angles(rope: RopeConfig | None, length: int) -> torch.Tensor:
    assert rope is not None
    return torch.from_numpy(rope_table(rope, length))


def transformers_angles(
    kind: str, fields: dict[str, Any], length: int, folder: Path, layers: str | None = None
) -> torch.Tensor:
    (folder / "config.json").write_text(json.dumps(config_of(kind, fields)))
    config = AutoConfig.from_pretrained(folder)
    options = {} if layers is None else {"layer_type": layers}
    embedding = CLASSES[kind][1](config)
    cos, sin = embedding(torch.zeros(1), torch.arange(length)[None], **options)
    half = cos.shape[-1] // 2
    return torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=1)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    # An angle of 128 radians is known to 8e-6 in float32, and the frequencies to one rounding.
    torch.testing.assert_close(found, expected, rtol=0.0, atol=3e-5)


SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"rope_theta": 5e5}),
    ("llama", {"rope_theta": 5e5, "rope_scaling": None, "rope_parameters": None}),
    ("llama", {"rope_theta": 1.0}),
    ("llama", {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}}),
    ("llama", {"rope_parameters": LINEAR | {"rope_theta": 5e5}}),
    ("llama", {"rope_parameters": LINEAR, "rope_theta": 5e5}),
    ("llama", {"rope_parameters": DEFAULT, "rope_scaling": LINEAR}),
    ("llama", {"rope_parameters": {"rope_theta": 1e4} | DEFAULT, "rope_scaling": LINEAR}),
    ("llama", {"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": LINEAR, "rope_theta": 5e5}),
    ("llama", {"rope_parameters": LINEAR, "rope_scaling": {}}),
    ("llama", {"rope_scaling": {"factor": 1.0}}),
    ("llama", {"rope_parameters": {"factor": 1.0, "rope_theta": 5e5}}),
    ("llama", {"rope_parameters": LINEAR | {"rope_theta": 7e4}, "rope_theta": 5e5}),
    ("llama", {"rope_scaling": LINEAR | {"type": "yarn"}}),
    ("llama", {"rope_scaling": YARN}),
    ("llama", {"rope_scaling": YARN | {TRAINED: 32}}),
    ("llama", {"rope_scaling": YARN, TRAINED: 32}),
    ("llama", {"rope_scaling": YARN | {TRAINED: 64}, TRAINED: 32}),
    ("llama", {"rope_scaling": YARN | {"factor": None, TRAINED: 32}}),
    ("llama", {"rope_scaling": YARN | {"factor": 0.5, TRAINED: 32}}),
    ("llama", {"rope_scaling": YARN | {"beta_fast": 0, "beta_slow": 2, "mscale": 0}}),
    ("llama", {"rope_scaling": YARN | {"beta_fast": 2, "beta_slow": 8, "truncate": False}}),
    ("llama", {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}}),
    ("llama", {"rope_scaling": YARN | {"attention_factor": 1}}),
    ("llama", {"rope_scaling": YARN | {"low_freq_factor": 3.0}}),
    ("llama", {"rope_scaling": LLAMA3}),
    ("llama", {"rope_scaling": LLAMA3, TRAINED: 32}),
    ("llama", {"rope_scaling": LLAMA3 | {TRAINED: 64}, TRAINED: 32}),
    ("llama", {"rope_scaling": LONG, TRAINED: 64}),
    ("llama", {"rope_scaling": LONG | {TRAINED: 256}, TRAINED: 64}),
    ("llama", {"rope_scaling": LONG | {TRAINED: 64, "factor": 6.0}}),
    ("llama", {"rope_scaling": LONG | {TRAINED: 64, "attention_factor": 1.5}}),
    ("mistral", {"rope_scaling": YARN, TRAINED: 32}),
    ("qwen2", {"rope_scaling": YARN | {TRAINED: 32}, "rope_theta": 1e6}),
    ("phi3", {"rope_scaling": {"type": "su", TRAINED: 64} | LISTS, TRAINED: 64}),
    ("phi3", {"rope_parameters": {"type": "yarn"} | LISTS, TRAINED: 64}),
    ("phi3", {"rope_parameters": LONG | {"rope_theta": 5e5, TRAINED: 32}, TRAINED: 64}),
    ("phi3", {"rope_scaling": None, "partial_rotary_factor": 0.5}),
    ("phi3", {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5, "rope_theta": 7e4}}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "fields"), SPELLINGS, ids=str)
def test_angles_are_transformers_own(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    rope = model_config(config_of(kind, fields)).rope
    same(angles(rope, MAX_LEN), transformers_angles(kind, fields, MAX_LEN, tmp_path))


TWO = {FULL: {"rope_theta": 5e5, **LINEAR}, SLIDING: {"rope_theta": 2e4, **DEFAULT}}
NESTED: list[tuple[str, dict[str, Any]]] = [
    ("gemma3_text", {}),
    ("gemma3_text", {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR}),
    ("gemma3_text", {"rope_parameters": TWO}),
    ("gemma3_text", {"rope_parameters": TWO, "rope_theta": 3.0}),
    ("gemma3_text", {"rope_parameters": TWO, "rope_scaling": {"rope_type": "yarn", TRAINED: 32}}),
    ("gemma3_text", {"rope_parameters": {FULL: LINEAR}, "rope_local_base_freq": 2e4}),
    ("gemma3_text", {"rope_parameters": {SLIDING: LINEAR, FULL: None}, "rope_theta": 2e4}),
    ("modernbert", {}),
    ("modernbert", {"global_rope_theta": 5e5, "local_rope_theta": 2e4, "rope_scaling": LINEAR}),
    ("modernbert", {"rope_parameters": TWO, "local_rope_theta": 3.0}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "fields"), NESTED, ids=str)
def test_angles_of_both_kinds_of_layers(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    model = model_config(config_of(kind, fields))
    for layers, rope in ((FULL, model.rope), (SLIDING, model.local_rope)):
        expected = transformers_angles(kind, fields, MAX_LEN, tmp_path, layers)
        same(angles(rope, MAX_LEN), expected)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 7e4}, "rope_theta": 5e5}, "rope_theta"),
        ("llama", {"rope_scaling": YARN | {TRAINED: 64}, TRAINED: 32}, TRAINED),
        ("llama", {"rope_scaling": LINEAR | {"type": "yarn"}}, "rope_type"),
        ("llama", {"rope_scaling": LINEAR | {"beta_fast": 3.0}}, "beta_fast"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2, TRAINED: 3}}, TRAINED),
        ("gemma3_text", {"rope_parameters": TWO, "rope_theta": 3.0}, "rope_theta"),
        ("gemma3_text", {"rope_parameters": TWO, "rope_scaling": YARN}, "rope_type"),
    ],
)
def test_two_statements_are_warned_of(
    kind: str, fields: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model_config(config_of(kind, fields))
    assert said in caplog.text


@pytest.mark.parametrize(("kind", "fields"), [*SPELLINGS[:6], *NESTED[:3]])
def test_one_statement_is_not(
    kind: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model_config(config_of(kind, fields))
    assert caplog.text == ""


def wrong(kind: str, field: str, value: Any, **more: Any) -> tuple[str, dict[str, Any], str]:
    scaling = {"yarn": YARN, "llama3": LLAMA3, "longrope": LONG}.get(kind, {"factor": 2.0})
    return "llama", {"rope_scaling": scaling | {"rope_type": kind, field: value} | more}, field


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(
        wrong("yarn", name, value)
        for name in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                     "attention_factor", "rope_theta")
        for value in ("4", "x", [2.0], True, -1.0, float("nan"), float("inf"), 1e300, 1e-300)
        if (name, value) != ("rope_theta", 1e300)
    ),
    *(wrong("yarn", TRAINED, value) for value in ("4", 0, -1, 2.5, 10**30)),
    *(wrong("yarn", "truncate", value) for value in ("false", 0)),
    *(wrong("linear", "factor", value) for value in ("4", 0, -2, float("nan"), 1e300)),
    *(wrong("dynamic", "factor", value) for value in ("4", 0, -2, float("nan"), 1e300)),
    *(wrong("llama3", name, value)
      for name in ("factor", "low_freq_factor", "high_freq_factor", TRAINED)
      for value in ("4", 0, -1.0, float("nan"), 10**400)),
    *(wrong("longrope", name, value)
      for name in ("short_factor", "long_factor")
      for value in (3.0, [], [1.0] * 7, [1.0] * 9, ["1"] * 8, [0.0] * 8, [float("nan")] * 8)),
    wrong("longrope", TRAINED, 1),
    wrong("longrope", "attention_factor", "1"),
    wrong("llama3", "high_freq_factor", 0.5),
    ("llama", {"rope_theta": "10000"}, "rope_theta"),
    ("llama", {"rope_theta": 0.5}, "rope_theta"),
    ("llama", {"rope_theta": 1.0, "rope_scaling": YARN}, "rope_theta"),
    ("llama", {"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "head_dim"),
    ("llama", {"head_dim": 15}, "head_dim"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"rope_scaling": {"factor": 8.0}}, "rope_type"),
    ("llama", {"rope_scaling": {"factor": 1.0, TRAINED: 32}}, "rope_type"),
    ("llama", {"rope_scaling": DEFAULT | {"factor": 8.0}}, "factor"),
    ("llama", {"rope_scaling": [1]}, "rope_scaling"),
    ("llama", {"rope_scaling": {"rope_type": ["yarn"]}}, "yarn"),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 5e5}}, "rope_parameters"),
    ("llama", {"rope_scaling": DEFAULT, "rope_parameters": YARN}, "rope_parameters"),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": YARN}, "rope_parameters"),
    ("qwen2", {"rope_parameters": TWO}, "rope_parameters"),
    ("phi3", {"rope_scaling": LONG | {TRAINED: 64}}, TRAINED),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters"),
    ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling"),
    ("gemma3_text", {TRAINED: 64}, TRAINED),
    ("gemma3_text", {"rope_parameters": {FULL: YARN | {"truncate": False}}}, "truncate"),
    ("modernbert", {"rope_theta": 5e5}, "rope_theta"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "param"), REFUSED, ids=str)
def test_what_cannot_be_right_is_refused_by_name(
    kind: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(QuireError) as caught:
        model_config(config_of(kind, fields))
    assert param in str(caught.value)
    assert caught.value.param in (param, "rope_scaling", "rope_type")


OWN: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3, TRAINED: 16}),
    ("llama", {"rope_parameters": DEFAULT | {"rope_theta": 5e5}}),
    ("llama", {"rope_parameters": YARN | {"rope_theta": 5e5, TRAINED: 16}}),
]


@pytest.mark.parametrize(("kind", "own"), OWN)
def test_overrides_take_effect_whatever_the_spelling(kind: str, own: dict[str, Any]) -> None:
    config = config_of(kind, own)
    before = model_config(config).rope

    def rope(**given: Any) -> RopeConfig:
        found = model_config(overridden(config, given)).rope
        assert found is not None
        return found

    theta = rope(rope_theta=7e4)
    assert (theta.theta, theta.scaling, theta.params) == (7e4, before.scaling, before.params)
    for table in ("rope_scaling", "rope_parameters"):
        scaled = rope(**{table: YARN | {TRAINED: 32}})
        assert (scaled.theta, scaled.scaling) == (before.theta, "yarn")
        assert scaled.params == {"factor": 4.0, TRAINED: 32}
        both = rope(**{table: YARN | {"rope_theta": 3e4, TRAINED: 32}})
        assert (both.theta, both.params) == (3e4, scaled.params)
        assert rope(**{table: YARN}, rope_theta=3e4).theta == 3e4
        none = rope(**{table: None})
        assert (none.theta, none.scaling) == (before.theta, "default")
    assert config == config_of(kind, own)


def test_overrides_of_two_ropes() -> None:
    older = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR}
    for own in (older, {"rope_parameters": TWO}):
        config = config_of("gemma3_text", own)

        def thetas(config: dict[str, Any] = config, **given: Any) -> tuple[float, float, str]:
            model = model_config(overridden(config, given))
            return model.rope.theta, model.local_rope.theta, model.rope.scaling

        assert thetas() == (5e5, 2e4, "linear")
        assert thetas(rope_theta=7e4) == (7e4, 2e4, "linear")
        assert thetas(rope_local_base_freq=7e4) == (5e5, 7e4, "linear")
        assert thetas(rope_scaling=YARN) == (5e5, 2e4, "yarn")
        assert thetas(rope_scaling=None) == (5e5, 2e4, "default")
        assert thetas(rope_parameters={FULL: YARN}) == (5e5, 2e4, "yarn")
