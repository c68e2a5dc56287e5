"""Layers that are made of declarations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from quire.core.dtypes import BFLOAT16, HostArray
from quire.core.errors import CheckpointError
from quire.core.quantized import QuantizedWeight
from quire.models.builder import Builder
from quire.models.decoder import _kv_units
from quire.models.layout import Layout, parameters
from quire.models.specs import LinearSpec, NormSpec
from quire.ops.torch_ops.provider import TorchOps
from tests.arrays import array
from tests.unit.executor.configs import TINY


class One:
    """A source of one tensor, whatever is asked for."""

    dtype = BFLOAT16

    def __init__(self, value: HostArray) -> None:
        self._value = value

    def has(self, name: str) -> bool:
        return False

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        return [self._value]

    def tensor(self, name: str) -> HostArray:
        return self._value


@pytest.mark.parametrize(
    ("gain", "theirs"),
    [("rounded", LlamaRMSNorm), ("float32", Olmo2RMSNorm), ("plus_one", GemmaRMSNorm)],
)
def test_gains_multiply_as_in_transformers(gain: Any, theirs: Any) -> None:
    """To the bit, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    weight = (1.0 + 0.2 * torch.randn(64, generator=generator)).bfloat16()
    x = torch.randn(50, 64, generator=generator).bfloat16()
    oracle = theirs(64, eps=1e-6).bfloat16()
    oracle.weight.data = weight
    model, ops = replace(TINY, norm_gain=gain, norm_eps=1e-6), TorchOps()
    norm = Builder(model, One(array(weight)), 8, ops).norm(NormSpec("norm", 64))
    assert torch.equal(norm.forward(ops, x), oracle(x))


def test_norms_stand_where_the_config_says() -> None:
    model = replace(
        TINY, norms=("attn_post_norm", "mlp_norm"), missing_norms=("layers.1.mlp_norm",)
    )
    names = [p.name for p in parameters(model) if p.kind == "norm"]
    assert names == [
        "layers.0.attn_post_norm.weight", "layers.0.mlp_norm.weight",
        "layers.1.attn_post_norm.weight",
    ]  # fmt: skip
    attention, mlp = Layout(model).layers[1]
    assert (attention.before, mlp.before, mlp.after, mlp.total) == (None,) * 4
    assert attention.after == NormSpec("layers.1.attn_post_norm", model.hidden_size)


def test_norms_of_q_and_k_are_as_wide_as_a_head_or_all() -> None:
    def widths(how: Any) -> list[tuple[int, ...]]:
        found = parameters(replace(TINY, qk_norm=how, num_hidden_layers=1))
        return [p.shape for p in found if ".attn.q_norm" in p.name or ".attn.k_norm" in p.name]

    assert widths(None) == []
    assert widths("head") == [(8,), (8,)]
    assert widths("full") == [(32,), (16,)]


def test_weights_whose_groups_are_out_of_order_are_split_too() -> None:
    """As act-order GPTQ stores them: dequantized, because no run of columns is whole groups."""
    draw = np.random.default_rng(0)
    codes, scale = draw.integers(-8, 8, (3, 8), np.int8), draw.random((3, 2), np.float32)
    weight = QuantizedWeight(codes, 8, scale, 4, permutation=draw.permutation(8))
    ops, x = TorchOps(), torch.from_numpy(draw.random((5, 8), np.float32)).bfloat16()
    source = One(weight)  # type: ignore[arg-type]
    halves = Builder(TINY, source, 8, ops).side_by_side(LinearSpec("fuse", (3,), 8, bias=False), 4)
    found = sum(half.forward(ops, part) for half, part in zip(halves, x.split(4, 1), strict=True))
    exact = x.double() @ torch.from_numpy(weight.dequantize()).double().T
    # The weights, both products and their sum are rounded to bfloat16's 8 bits.
    size = x.double() @ torch.from_numpy(np.abs(weight.dequantize())).double().T
    assert bool(((found - exact).abs() <= 3 * 2.0**-8 * size).all())


class Scales(One):
    """Stored scales of a layer's keys, and none of its values."""

    def has(self, name: str) -> bool:
        return name.endswith("k_scale")


def test_units_of_an_8_bit_cache() -> None:
    scales = Scales(np.array([0.5, 2.0, 0.25], np.float32))
    assert _kv_units(scales, 0) == (2.0, 1.0)
    for count in (0, 1):
        with pytest.raises(CheckpointError, match=r"k_scale is 0\.0; the scale of a KV cache"):
            _kv_units(Scales(np.zeros(count, np.float32)), 0)
