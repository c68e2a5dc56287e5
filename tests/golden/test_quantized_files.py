"""What `quire quantize` writes, loaded by Transformers through compressed-tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.dtypes import BFLOAT16, FLOAT32
from quire.quantize.compressed import stored_weight
from quire.quantize.grid import Grid, round_to_nearest
from quire.quantize.job import Job, quantize
from quire.quantize.recipe import Recipe
from quire.quantize.source import Source
from quire.quantize.targets import target_of
from tests.arrays import tensor

pytest.importorskip("compressed_tensors")

RECIPES = {
    "int8": Recipe("int8"),
    "int8_w8a16": Recipe("int8_w8a16"),
    "int4": Recipe("int4", group_size=32),
    "int4 asymmetric": Recipe("int4", group_size=64, symmetric=False),
    "fp8": Recipe("fp8"),
}


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_transformers_reads_the_values_that_were_meant(tmp_path: Path, recipe: Recipe) -> None:
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    folder = quantize(Job("embedded-draft", tmp_path / "out", recipe), lambda *_: None)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=CompressedTensorsConfig(dequantize=True), dtype=torch.bfloat16
    )
    theirs = model.state_dict()
    source = Source("embedded-draft", None, None)
    target = target_of(recipe, BFLOAT16)
    seen = 0
    for name in ("attn.qkv", "attn.out", "mlp.gate_up", "mlp.down"):
        parameter = f"layers.1.{name}.weight"
        ours = tensor(target.nearest(source.read(parameter)).dequantize()).bfloat16()
        for piece in source.pieces(parameter):
            values = theirs[piece.name]
            assert torch.equal(values, ours[piece.row : piece.row + piece.rows]), piece.name
            seen += 1
    assert seen == 7
    embedding = tensor(source.read("embed.weight")).bfloat16()
    assert torch.equal(theirs["model.embed_tokens.weight"], embedding)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [64, 40, 8])
def test_packing_is_the_librarys(bits: int, columns: int) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    weight = np.random.default_rng(bits).standard_normal((16, columns), np.float32)
    recipe = Recipe("int4" if bits == 4 else "int8_w8a16", group_size=8)
    quantized = round_to_nearest(weight, Grid("int", bits, scale_dtype=FLOAT32), 8)
    stored = {t.name: t for t in stored_weight("m", quantized, recipe, FLOAT32)}
    signed = (quantized.codes - (8 if bits == 4 else 0)).astype(np.int8)
    ours = torch.from_numpy(stored["m.weight_packed"].make().copy())
    assert torch.equal(ours, pack_to_int32(torch.from_numpy(signed), bits))
