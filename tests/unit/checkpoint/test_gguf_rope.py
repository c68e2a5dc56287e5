"""RoPE's keys of GGUF files: llama.cpp's angles, or a refusal that names the key."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_config import hf_config
from quire.core.errors import QuireError, UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.layers.rotary import rope_table
from quire.models.registry import model_config
from quire.quantize.gguf_export import metadata
from tests.unit.checkpoint.make_files import HEADS, HIDDEN, llama_tensors, write_gguf

HEAD_DIM = HIDDEN // HEADS
CONTEXT = 256  # as write_gguf has it
THETA = 10000.0


def model_of(folder: Path, tensors: Any = None, **keys: Any) -> ModelConfig:
    scaling = {f"llama__rope__scaling__{name}": value for name, value in keys.items()}
    path = write_gguf(folder / "m.gguf", tensors or llama_tensors(), **scaling)
    return model_config(hf_config(GGUFFile(path)))


def llama_cpps_table(
    length: int,
    kind: str = "linear",
    factor: float = 1.0,
    attn_factor: float = 1.0,
    original: int = CONTEXT,
    betas: tuple[float, float] = (32.0, 1.0),
    factors: np.ndarray | None = None,
) -> np.ndarray:
    """Cosines and sines as llama.cpp computes them, in float64."""
    pairs = np.arange(HEAD_DIM // 2)
    extrapolated = THETA ** (-2.0 * pairs / HEAD_DIM) / (1.0 if factors is None else factors)
    frequencies = extrapolated / factor
    magnitude = attn_factor
    if kind == "yarn":
        low, high = (
            HEAD_DIM * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(THETA))
            for beta in betas
        )
        low, high = max(0, math.floor(low)), min(HEAD_DIM - 1, math.ceil(high))
        ramp = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        frequencies = frequencies * (1 - ramp) + extrapolated * ramp
        magnitude *= 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * magnitude


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {}),
        ({"attn_factor": 1.0}, {}),
        ({"attn_factor": 1.25}, {"attn_factor": 1.25}),
        ({"type": "none", "factor": 4.0}, {}),
        ({"type": "none", "attn_factor": 0.8}, {"attn_factor": 0.8}),
        ({"factor": 4.0}, {"factor": 4.0}),
        ({"type": "linear", "factor": 4.0}, {"factor": 4.0}),
        (
            {"type": "linear", "factor": 4.0, "attn_factor": 1.5},
            {"factor": 4.0, "attn_factor": 1.5},
        ),
        (YARN, {"kind": "yarn", "factor": 4.0, "original": 64}),
        (YARN | {"attn_factor": 1.5}, {"kind": "yarn", "factor": 4.0, "original": 64,
                                      "attn_factor": 1.5}),
        ({"type": "yarn", "factor": 4.0}, {"kind": "yarn", "factor": 4.0}),
        ({"type": "yarn"}, {"kind": "yarn"}),
        (YARN | {"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0},
         {"kind": "yarn", "factor": 4.0, "original": 64, "betas": (8.0, 2.0)}),
        (YARN | {"yarn_ext_factor": 1.0, "yarn_attn_factor": 0.1 * math.log(4.0) + 1.0},
         {"kind": "yarn", "factor": 4.0, "original": 64}),
    ],
)  # fmt: skip
def test_angles_are_llama_cpps(
    keys: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    rope = model_of(tmp_path, **keys).rope
    assert rope is not None
    found = rope_table(rope, CONTEXT)
    # An angle of 256 radians is known to 2e-5 in float32; magnitudes are up to 1.7.
    np.testing.assert_allclose(found, llama_cpps_table(CONTEXT, **expected), rtol=0, atol=6e-5)


@pytest.mark.parametrize("attn_factor", [1.0, 1.25])
def test_factors_and_their_magnitude(attn_factor: float, tmp_path: Path) -> None:
    factors = np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)
    tensors = llama_tensors() | {"rope_freqs.weight": factors}
    rope = model_of(tmp_path, tensors, attn_factor=attn_factor).rope
    assert rope is not None
    expected = llama_cpps_table(CONTEXT, factors=factors, attn_factor=attn_factor)
    np.testing.assert_allclose(rope_table(rope, CONTEXT), expected, rtol=0, atol=6e-5)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"yarn_attn_factor": 1.2}, "yarn_attn_factor"),
        (YARN | {"yarn_attn_factor": 1.0}, "yarn_attn_factor"),
        (YARN | {"yarn_ext_factor": 0.5}, "yarn_ext_factor"),
        ({"yarn_ext_factor": 1.0}, "yarn_ext_factor"),
        (YARN | {"yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"alpha": 1000.0}, "rope.scaling.alpha"),
        ({"type": "longrope", "factor": 2.0}, "longrope"),
        ({"attn_factor": -1.0}, "attention_factor"),
        (YARN | {"factor": -1.0}, "factor"),
        (YARN | {"factor": "4"}, "rope.scaling.factor"),
        ({"attn_factor": float("nan")}, "rope.scaling.attn_factor"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(
    keys: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with pytest.raises(QuireError, match=name):
        model_of(tmp_path, **keys)


def test_a_factor_beside_a_tensor_of_factors_is_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)
    tensors = llama_tensors() | {"rope_freqs.weight": factors}
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.factor is 2"):
        model_of(tmp_path, tensors, factor=2.0)


@pytest.mark.parametrize(
    "more",
    [{}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"attention_factor": 1.5},
     {"mscale": 0.7, "mscale_all_dim": 0.3}],
)  # fmt: skip
def test_what_is_written_is_read_again(more: dict[str, Any], tmp_path: Path) -> None:
    plain = model_of(tmp_path)
    config = {**_config_of(plain), "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **more,
    }}  # fmt: skip
    written = model_config(config)
    keys = {k.replace(".", "__"): v for k, v in metadata(written, "m").items()}
    del keys["general__architecture"]
    again = model_config(hf_config(GGUFFile(write_gguf(tmp_path / "n.gguf", llama_tensors(),
                                                       **keys))))  # fmt: skip
    assert written.rope is not None
    assert again.rope is not None
    found, expected = (rope_table(rope, CONTEXT) for rope in (again.rope, written.rope))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_what_gguf_cannot_say_is_not_written(tmp_path: Path) -> None:
    config = _config_of(model_of(tmp_path))
    yarn = {"rope_type": "yarn", "factor": 4.0, "truncate": False}
    with pytest.raises(UnsupportedModelError, match="truncate"):
        metadata(model_config(config | {"rope_scaling": yarn}), "m")
    layers = config["num_hidden_layers"]
    sliding = {"sliding_window": 8, "architectures": ["MistralForCausalLM"]}
    kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
    with pytest.raises(UnsupportedModelError, match="layers slide"):
        metadata(model_config(config | sliding | {"layer_types": kinds}), "m")
    qwen = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    with pytest.raises(UnsupportedModelError, match="layers slide"):
        metadata(model_config(config | sliding | qwen | {"max_window_layers": 1}), "m")


def _config_of(model: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "max_position_embeddings": model.max_position_embeddings,
    }


@pytest.mark.parametrize(
    ("stated", "read"), [((1 + 5 / 12) ** 0.5, 1.243163121016122), (1.25, 1.25), (None, 1.0)]
)
def test_the_factor_of_phi_3_5_moe(stated: float | None, read: float, tmp_path: Path) -> None:
    """llama.cpp's converter states that of a rule, in float32, and the model has another."""
    factors = np.linspace(1, 9, HEAD_DIM // 2, dtype=np.float32)
    names = ("rope_factors_long.weight", "rope_factors_short.weight")
    keys = {"expert_count": 16, "expert_used_count": 2, "context_length": 131072}
    scaling = {"original_context_length": 4096} | ({"attn_factor": stated} if stated else {})
    keys |= {f"rope__scaling__{key}": value for key, value in scaling.items()}
    path = write_gguf(
        tmp_path / "m.gguf",
        llama_tensors() | dict.fromkeys(names, factors),
        architecture="phimoe",
        **{f"phimoe__{key}": value for key, value in keys.items()},
    )
    model = model_config(hf_config(GGUFFile(path)))
    assert model.rope.params["attention_factor"] == read
    assert model.moe.route.band == 0.02
