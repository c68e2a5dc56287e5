"""`quire quantize` of mixtures of experts: what is written, and what Quire reads of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from quire import LLM, SamplingParams
from quire.checkpoint.source import resolve
from quire.core.dtypes import FLOAT32, Floats
from quire.core.errors import ConfigError, UnsupportedModelError
from quire.core.quantized import dense
from quire.models.registry import model_config
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.stored import StoredParameters
from quire.quant.registry import method, quantization_config
from quire.quantize.job import Job, quantize
from quire.quantize.recipe import Recipe
from quire.quantize.source import Source
from quire.quantize.targets import target_of
from tests.golden.test_lora import make_model

UP, DOWN = "layers.1.mlp.experts.gate_up.weight", "layers.1.mlp.experts.down.weight"
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def write(model: Path, name: str, scheme: str, method: Any = "rtn", **fields: Any) -> Path:
    text = model.parent / "text.txt"
    text.write_text("Once upon a time there was a fox.\n---\nAnd a hen, who lived by the sea.")
    own = {"calibration": str(text), "num_samples": 2} | fields
    recipe = Recipe(scheme, method, group_size=16)
    return quantize(Job(str(model), model.parent / name, recipe, **own), lambda *_: None)


def read(folder: Path, name: str) -> Floats:
    """What an engine reads of a quantized checkpoint."""
    source = resolve(str(folder))
    quantized = quantization_config(source.config)
    stored = StoredParameters(
        open_weights(source),
        model_config(source.config),
        FLOAT32,
        method=None if quantized is None else method(quantized),
    )
    return np.concatenate([dense(part, FLOAT32) for part in stored.parts(name)])


@pytest.mark.parametrize("name", ["qwen2-moe", "granitemoe", "glm4-moe"])
def test_an_expert_has_tensors_of_its_own(name: str, tmp_path: Path) -> None:
    """Also where the original has one tensor for all (Granite)."""
    model = tmp_path / "model"
    make_model(name, model)
    folder = write(model, "out", "int8")
    source, target = Source(str(model), None, None), target_of(Recipe("int8"), FLOAT32)
    tensors = load_file(folder / "model.safetensors")
    moe = source.config.moe
    assert moe is not None
    for parameter in (UP, DOWN):
        whole = source.read(parameter)
        expected = [target.nearest(w).dequantize() for w in np.split(whole, moe.num_experts)]
        assert np.array_equal(read(folder, parameter), np.concatenate(expected))
        parts = source.pieces(parameter)
        assert len(parts) == moe.num_experts * (2 if parameter == UP else 1)
        for part in parts:
            codes = tensors[part.name].astype(np.float32)
            values = codes * tensors[f"{part.name}_scale"]
            there = np.concatenate(expected)[part.row : part.row + part.rows]
            assert np.array_equal(values, there), part.name
    router = source.pieces("layers.1.mlp.router.weight")[0].name
    assert np.array_equal(tensors[router], source.read("layers.1.mlp.router.weight"))


def test_calibration_of_experts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """GPTQ uses each expert's own rows; experts without rows are rounded, and named."""
    model = tmp_path / "model"
    make_model("qwen3-moe", model)
    with caplog.at_level(logging.WARNING):
        folder = write(model, "gptq", "int4", "gptq", num_samples=1, seqlen=2)
    nearest = read(write(model, "rtn", "int4"), DOWN)
    found = read(folder, DOWN)
    same = [
        np.array_equal(*pair) for pair in zip(np.split(found, 8), np.split(nearest, 8), strict=True)
    ]
    assert 2 <= sum(same) < 8  # two tokens reach six of eight experts at most
    unseen = ", ".join(str(expert) for expert, equal in enumerate(same) if equal)
    assert f"layer-00001: no calibration row reached experts {unseen};" in caplog.text


@pytest.mark.parametrize(
    ("name", "kind", "method"),
    [
        ("mixtral", "F16", "awq"),
        ("qwen3-moe", "Q8_0", "rtn"),
        ("gpt-oss", "Q8_0", "rtn"),
        ("deepseek-v3", "Q8_0", "rtn"),
    ],
)
def test_a_gguf_file_of_experts(name: str, kind: str, method: Any, tmp_path: Path) -> None:
    """Read by gguf's own reader, and run. Mixtral's rows of 80 are no blocks of 32."""
    import gguf

    model = tmp_path / "model"
    make_model(name, model)
    path = write(model, "out.gguf", "q8_0", method)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    down = tensors["blk.1.ffn_down_exps.weight"]
    assert down.tensor_type.name == kind
    assert tensors["blk.1.ffn_gate_inp.weight"].tensor_type.name == "F32"
    values = gguf.quants.dequantize(down.data, down.tensor_type)
    assert np.array_equal(values.reshape(-1, values.shape[-1]), read(path, DOWN))
    with LLM(str(path), num_gpu_blocks_override=16, pack_cache_bytes=0) as llm:
        [output] = llm.generate([{"prompt_token_ids": [5, 6, 7]}], PARAMS, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3


def test_latent_attention_is_rounded_and_not_calibrated(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_model("deepseek-v3", model)
    with pytest.raises(UnsupportedModelError, match="latent attention, which cannot be calibrated"):
        write(model, "awq", "int8", "awq")
    folder = write(model, "out", "int8")
    source, target = Source(str(model), None, None), target_of(Recipe("int8"), FLOAT32)
    for name in ("attn.q_b.weight", "attn.out.weight"):
        weight = source.read(f"layers.1.{name}")
        assert np.array_equal(read(folder, f"layers.1.{name}"), target.nearest(weight).dequantize())
    heads = "layers.1.attn.kv_b.weight"
    assert np.array_equal(read(folder, heads), source.read(heads))
    with LLM(str(folder), num_gpu_blocks_override=16, pack_cache_bytes=0) as llm:
        [output] = llm.generate([{"prompt_token_ids": [5, 6, 7]}], PARAMS, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3


def test_gguf_refuses_what_its_readers_would_misread(tmp_path: Path) -> None:
    """Their Llama 4 has the published chunks."""
    make_model("llama4", tmp_path / "model")
    with pytest.raises(UnsupportedModelError, match=r"its \w+[\w.]* is .*, and readers would take"):
        write(tmp_path / "model", "out.gguf", "q8_0")


def test_gguf_cannot_ignore_some_experts(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_model("mixtral", model)
    ignore = ("lm_head", "model.layers.0.block_sparse_moe.experts.1.w1")
    job = Job(str(model), tmp_path / "out.gguf", Recipe("q8_0", ignore=ignore))
    with pytest.raises(ConfigError, match=r"some experts of layers\.0\.mlp\.experts\.gate_up"):
        quantize(job, lambda *_: None)
