"""Whole jobs on the small built-in model: what is written, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from quire.checkpoint.weight_files import INDEX
from quire.core.errors import ConfigError, UnsupportedModelError
from quire.quantize.gguf_target import GGUFTarget
from quire.quantize.job import Job, quantize
from quire.quantize.recipe import Recipe
from quire.quantize.source import Source
from quire.system.blas import current_blas_threads
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.golden.tiny_models import make_tiny, save_byte_tokenizer

MODEL = "embedded-draft"
ROOT = Path(__file__).resolve().parents[3]
TEXT = "\n---\n".join(
    f"Once upon a time there was a {what} who lived by the {where}. One day it went for a walk."
    for what in ("fox", "hen", "bear", "small dog", "boy", "girl")
    for where in ("sea", "river", "old mill", "wood")
)


def job(output: Path, scheme: str, **fields: Any) -> Job:
    text = output.parent / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    own = {"group_size": 32} | fields
    return Job(MODEL, output, Recipe(scheme, **own), calibration=str(text), num_samples=8)


def run(wanted: Job) -> Path:
    return quantize(wanted, lambda what, done, total: None)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("method", ["rtn", "awq", "gptq"])
@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_a_folder_that_is_a_model(tmp_path: Path, scheme: str, method: Any) -> None:
    folder = run(job(tmp_path / "out", scheme, method=method))
    names = set(os.listdir(folder))
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["ignore"] == ["lm_head"]
    tensors = load_file(folder / "model.safetensors")
    module = "model.layers.1.mlp.down_proj"
    if scheme == "int4":
        assert tensors[f"{module}.weight_packed"].shape == (128, 48)
        assert tensors[f"{module}.weight_scale"].shape == (128, 12)
        assert tensors[f"{module}.weight_shape"].tolist() == [128, 384]
    else:
        wanted = torch.int8 if scheme == "int8" else torch.float8_e4m3fn
        assert tensors[f"{module}.weight"].dtype == wanted
        assert tensors[f"{module}.weight_scale"].shape == (128, 1)
    assert tensors["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert not (tmp_path / "out.work").exists()
    with pytest.raises(ConfigError, match="is there already"):
        run(job(tmp_path / "out", scheme))


@pytest.mark.parametrize(
    ("scheme", "method", "types"),
    [
        ("q8_0", "rtn", ("Q8_0", "Q8_0", "Q8_0")),
        ("q4_k", "rtn", ("Q4_K", "Q5_0", "Q6_K")),
        ("q4_0", "awq", ("Q4_0", "Q4_0", "Q8_0")),
        ("f16", "rtn", ("F16", "F16", "F16")),
    ],
)
def test_a_gguf_file_that_is_a_model(
    tmp_path: Path, scheme: str, method: Any, types: tuple[str, ...]
) -> None:
    """Read by gguf's own reader: types, values and order of rows, and by Quire: the tokenizer."""
    import gguf

    model = "embedded" if method == "rtn" else MODEL
    wanted = replace(job(tmp_path / "out.gguf", scheme, method=method), model=model)
    path = run(wanted)
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = ("blk.1.attn_k.weight", "blk.1.ffn_down.weight", "token_embd.weight")
    assert tuple(tensors[name].tensor_type.name for name in names) == types
    assert tensors["blk.1.attn_norm.weight"].tensor_type.name == "F32"
    source = Source(model, None, None)
    if method == "rtn":
        for name, stored in (
            ("blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight"),
            ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ):
            values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
            ours = GGUFTarget(scheme).nearest(source.stored(stored).astype(np.float32)).dequantize()
            if "attn_k" in name:  # pairs that turn together lie side by side
                ours = ours.reshape(2, 2, 32, -1).swapaxes(1, 2).reshape(ours.shape)
            np.testing.assert_allclose(values, ours, rtol=1e-6, atol=1e-9)
    here, there = load_tokenizer(path), load_tokenizer(source.found.tokenizer_path)
    text = "Once upon a time, there were 3 hens -- \u00fcber all!\n\n  The end."
    assert here.encode(text) == there.encode(text)
    assert here.chat_template == there.chat_template
    again = Source(str(path), None, None) if scheme == "f16" else None
    if again is not None:
        assert again.config.rope == source.config.rope
        k = "model.layers.1.self_attn.k_proj.weight"
        assert np.array_equal(again.stored(k), source.stored(k).astype(np.float16))


def test_ignored_layers_stay(tmp_path: Path) -> None:
    ignore = ("lm_head", "re:.*down_proj", "model.layers.0.self_attn.q_proj")
    folder = run(job(tmp_path / "out", "int8", ignore=ignore))
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    stayed = {
        "model.layers.0.self_attn.q_proj",
        *(f"model.layers.{i}.mlp.down_proj" for i in (0, 1)),
    }
    assert set(config["ignore"]) == stayed | {"lm_head"}
    for name in stayed:
        assert tensors[f"{name}.weight"].dtype == torch.bfloat16
    assert tensors["model.layers.0.self_attn.k_proj.weight"].dtype == torch.int8


def test_blas_has_the_jobs_threads(tmp_path: Path) -> None:
    before = current_blas_threads()
    seen: dict[str, int] = {}
    wanted = replace(job(tmp_path / "out", "int8", method="rtn"), num_threads=before + 1)
    quantize(wanted, lambda what, done, total: seen.update({what: current_blas_threads()}))
    assert seen.pop("done") == before
    assert set(seen.values()) == {before + 1 if before else 0}


def test_shards(tmp_path: Path) -> None:
    wanted = job(tmp_path / "out", "int8")
    folder = run(Job(MODEL, wanted.output, wanted.recipe, max_shard_bytes=500_000))
    assert (folder / INDEX).exists()
    whole = run(job(tmp_path / "whole", "int8"))
    merged: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        merged |= load_file(path)
    alone = load_file(whole / "model.safetensors")
    assert merged.keys() == alone.keys()
    assert all(torch.equal(merged[name], alone[name]) for name in alone)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.quantize.test_job import job, quantize

def die(what: str, done: int, total: int) -> None:
    if (output.parent / "killed.work" / "layer-00000.safetensors").exists():
        os.kill(os.getpid(), signal.SIGKILL)

output = Path(sys.argv[1])
quantize(job(output, "int4", method=sys.argv[2]), die)
"""


@pytest.mark.parametrize("method", [pytest.param("awq", marks=pytest.mark.slow), "gptq"])
def test_a_job_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path, method: Any) -> None:
    wanted = run(job(tmp_path / "wanted", "int4", method=method))
    output = tmp_path / "killed"
    child = subprocess.run([sys.executable, "-c", KILLED, output, method], cwd=ROOT, check=False)
    assert child.returncode == -signal.SIGKILL, "it was killed in the middle"
    assert (tmp_path / "killed.work").is_dir()
    assert not output.exists()
    resumed = run(job(output, "int4", method=method))
    assert contents(resumed) == contents(wanted)


def test_work_of_another_job_is_refused(tmp_path: Path) -> None:
    wanted = job(tmp_path / "out", "int8")

    def stop(what: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(wanted, stop)
    with pytest.raises(ConfigError, match=r"out.work holds work of another scheme: int8, not int4"):
        run(job(tmp_path / "out", "int4"))
    run(wanted)


REFUSED = {
    "there is no scheme": {"scheme": "int5"},
    "GPTQ does not go with q4_0": {"scheme": "q4_0", "method": "gptq"},
    "asymmetric is for int4": {"scheme": "int8", "symmetric": False},
    "a multiple of 8": {"scheme": "int4", "group_size": 12},
    "is no pattern": {"scheme": "int4", "ignore": ("re:(",)},
}


@pytest.mark.parametrize(("what", "fields"), REFUSED.items(), ids=REFUSED.keys())
def test_recipes_that_cannot_be(what: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=what):
        Recipe(**fields)


def test_awq_of_heads_that_are_stored_one_by_one(tmp_path: Path) -> None:
    make_tiny("gpt-neox", 0, tmp_path / "model")
    save_byte_tokenizer(tmp_path / "model")
    wanted = replace(job(tmp_path / "out", "int4", method="awq"), model=str(tmp_path / "model"))
    with pytest.raises(UnsupportedModelError, match=r"head by head.*--method gptq"):
        run(wanted)


def test_what_does_not_fit_the_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj has 128 columns.*--group-size 128 fits"):
        run(job(tmp_path / "out", "int4", group_size=256))
    with pytest.raises(ConfigError, match="names no layer"):
        run(job(tmp_path / "out", "int4", ignore=("q_prj",)))
    with pytest.raises(ConfigError, match="writes a folder"):
        run(job(tmp_path / "out.gguf", "int4"))
    with pytest.raises(ConfigError, match=r"writes a \.gguf file"):
        run(job(tmp_path / "out", "q4_0"))
    again = run(job(tmp_path / "out", "int8"))
    config = json.loads((again / "config.json").read_text())
    inner = {"text_config": {"quantization_config": config.pop("quantization_config")}}
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"is quantized already \(compressed-tensors\)"):
            quantize(Job(str(again), tmp_path / "twice", Recipe("int8")), lambda *_: None)
        (again / "config.json").write_text(json.dumps(config | inner))
