"""gpt-oss as it is published: experts in MXFP4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from quire import LLM, SamplingParams
from quire.core.errors import CheckpointError
from tests.golden.test_lora import make_model

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, logprobs=2, ignore_eos=True)
PROMPT = {"prompt_token_ids": list(range(3, 43))}
FLAGS: dict[str, Any] = {"num_gpu_blocks_override": 32, "num_threads": 1}


def write_pair(folder: Path) -> tuple[Path, Path]:
    """The tiny model in two folders: as published, and dense with what Transformers reads there."""
    published, dense = folder / "published", folder / "dense"
    for path in (published, dense):
        make_model("gpt-oss", path)
    weights = load_file(dense / "model.safetensors")
    draw, packed = torch.Generator().manual_seed(0), dict(weights)
    for name, weight in weights.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, columns, rows = weight.shape  # [experts, in, out]
        blocks = torch.randint(
            256, (experts, rows, columns // 32, 16), generator=draw, dtype=torch.uint8
        )
        scales = torch.randint(
            121, 126, (experts, rows, columns // 32), generator=draw, dtype=torch.uint8
        )
        del packed[name]
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert values.shape == weight.shape
        weights[name] = values.contiguous()
    save_file(weights, dense / "model.safetensors")
    save_file(packed, published / "model.safetensors")
    path = published / "config.json"
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": method}))
    return published, dense


def answer(folder: Path, **flags: Any) -> tuple[Any, LLM]:
    with LLM(str(folder), **FLAGS, **flags) as llm:
        [output] = llm.generate([PROMPT], PARAMS, use_tqdm=False)
        return (output.outputs[0].token_ids, output.outputs[0].logprobs), llm


def test_published_experts_are_what_transformers_reads(tmp_path: Path) -> None:
    published, dense = write_pair(tmp_path)
    assert answer(published, ops="reference")[0] == answer(dense, ops="reference")[0]
    got, packed = answer(published)
    assert len(got[0]) == 8
    _, plain = answer(dense)
    assert packed.facts["weight_bytes"] < 0.5 * plain.facts["weight_bytes"]


def test_experts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    published, _ = write_pair(tmp_path)
    whole = load_file(published / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    for changed in (None, whole[name][:5].clone(), whole[name].to(torch.int32)):
        weights = {key: value for key, value in whole.items() if key != name}
        if changed is not None:
            weights[name] = changed
        save_file(weights, published / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"layers.1.mlp.experts.down_proj.scales"):
            answer(published)
