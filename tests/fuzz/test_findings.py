"""What tampered files once did that they must not: each was found by `tests.fuzz.model_files`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.checkpoint.safetensors import SafetensorsFile
from quire.core.errors import CheckpointError
from quire.models.registry import model_config
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.e2e.tiny_model import CONFIG
from tests.fuzz.safetensors_cases import packed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 2**40),  # counted one by one
        ("num_hidden_layers", 2**31 - 1),
        ("hidden_size", 10**400),  # no float, no word of 64 bits
        ("rms_norm_eps", 10**400),
        ("rope_theta", 10**400),
        ("rope_theta", float("nan")),
        ("partial_rotary_factor", 1e308),
        ("rope_scaling", [1, 2]),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"rope_type": ["linear"], "factor": 2.0}),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 1e308}),
        ("hidden_act", ["silu"]),
        ("architectures", 7),
        ("architectures", [["LlamaForCausalLM"]]),
        ("architectures", {"LlamaForCausalLM": 1}),
        ("eos_token_id", 10**30),
        ("bos_token_id", [2**64]),
    ],
)
def test_a_config_that_no_model_has(field: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        model_config({**CONFIG, field: value})
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("model_type", [["llama"], {"llama": 1}, 7])
def test_a_model_type_that_is_no_name(model_type: Any) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "architectures"}
    with pytest.raises(CheckpointError, match="model type"):
        model_config({**config, "model_type": model_type})


def test_layers_are_not_counted_before_they_are_checked() -> None:
    spoiled = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True,
               "num_hidden_layers": 2**31 - 1}  # fmt: skip
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        model_config({**CONFIG, **spoiled})


@pytest.mark.parametrize("shape", [[0, 2**63], [2**62, 0], [0, 10**30], [0, 2**40, 2**40]])
def test_an_empty_tensor_that_is_too_wide(shape: list[int], tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    path.write_bytes(packed(json.dumps(header).encode(), b""))
    with pytest.raises(CheckpointError, match=r"wide\.safetensors: tensor 'w'"):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantization_config", {"quant_method": {}}),
        ("quantization_config", {"quant_method": ["gptq"]}),
        ("quantization_config", {"quant_method": "gptq", "bits": 4, "extra": 10**30}),
        ("quantization_config", {"quant_method": "awq", "extra": "\ud800"}),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "extra": 2**64}),
    ],
)
def test_a_config_that_cannot_travel(field: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, field: value}))
    (tmp_path / "model.safetensors").write_bytes(packed(b"{}", b""))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resolve(EngineArgs(model=str(tmp_path)), detect())
