"""A quantized checkpoint answers as the dense one does that holds what its codes mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.outputs import RequestOutput
from tests.e2e.tiny_model import tiny_weights, write_tiny_model
from tests.unit.quant import packers
from tests.unit.quant.packers import Layer

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, ignore_eos=True)
PROMPTS = ["Once upon a time", "x"]
NAMED: dict[str, tuple[dict[str, Any], Callable[..., Layer]]] = {
    "gptq": (
        {"bits": 4, "group_size": 32, "desc_act": True, "sym": False},
        partial(packers.gptq, act_order=True),
    ),
    "awq": ({"bits": 4, "group_size": 32, "version": "gemm"}, packers.awq),
    "fp8": (
        {"weight_block_size": [32, 32], "activation_scheme": "dynamic"},
        partial(packers.fp8, block=(32, 32)),
    ),
    "bitsandbytes": (
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        packers.bnb4,
    ),
    "modelopt": ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, packers.nvfp4_modelopt),
}


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """The tiny model in two folders: its layers quantized, and dense with what that means."""
    config, pack = NAMED[name]
    draw = np.random.default_rng(0)
    quantized: dict[str, torch.Tensor] = {}
    dense: dict[str, torch.Tensor] = {}
    for key, values in tiny_weights().items():
        layer = key.removesuffix(".weight")
        if values.ndim == 2 and layer.startswith("model.layers."):
            made = pack(draw, *values.shape)
            quantized |= {f"{layer}.{suffix}": t for suffix, t in made.tensors.items()}
            dense[key] = torch.from_numpy(made.weight)
        else:
            quantized[key] = dense[key] = torch.from_numpy(values)
    folders = folder / "quantized", folder / "dense"
    write_tiny_model(folders[0], quantization_config={"quant_method": name, **config})
    write_tiny_model(folders[1])
    for path, weights in zip(folders, (quantized, dense), strict=True):
        save_file({key: t.contiguous() for key, t in weights.items()}, path / "model.safetensors")
    return folders


def generate(
    model: Path | str, params: SamplingParams = PARAMS, **flags: Any
) -> list[RequestOutput]:
    with LLM(model=str(model), **flags) as llm:
        return llm.generate(PROMPTS, params, use_tqdm=False)


@cache
def first(quantization: str | None) -> list[RequestOutput]:
    """The built-in model's first tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
    return generate("embedded", params, ops="reference", quantization=quantization)


def logprobs(outputs: list[RequestOutput]) -> list[Any]:
    return [output.outputs[0].logprobs for output in outputs]


@pytest.mark.parametrize("name", NAMED)
def test_the_same_answer_as_dense(name: str, tmp_path: Path) -> None:
    quantized, dense = write_pair(tmp_path, name)
    got, expected = (generate(folder, ops="reference") for folder in (quantized, dense))
    for one, other in zip(got, expected, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
    assert logprobs(got) == logprobs(expected)
    # The native products may round activations; they answer, and the flag may say what is there.
    kernel = {"awq": "awq_marlin", "gptq": "gptq_marlin"}.get(name, name)  # vLLM's names
    for output in generate(quantized, quantization=kernel):
        assert len(output.outputs[0].token_ids) == 12
    with pytest.raises(ConfigError, match=f"quantized already, by {name}"):
        LLM(model=str(quantized), quantization="int8")


@pytest.mark.parametrize(
    ("name", "most"), [("gptq", 0.5), ("nf4", 0.5), ("fp8", 0.2), ("fp8_block", 0.2), ("int8", 0.2)]
)
def test_rounding_while_loading(name: str, most: float) -> None:
    """The first token is about as likely as unquantized."""
    for one, other in zip(first(None), first(name), strict=True):
        exact, rounded = one.outputs[0].logprobs, other.outputs[0].logprobs
        token = max(exact[0], key=lambda i: exact[0][i].logprob)
        assert abs(exact[0][token].logprob - rounded[0][token].logprob) < most


def test_dummy_weights_run(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for name in ("gptq_actorder", "fp8_block", "q6_k"):
        outputs = generate(folder, load_format="dummy", quantization=name)
        assert all(len(output.outputs[0].token_ids) == 12 for output in outputs)
