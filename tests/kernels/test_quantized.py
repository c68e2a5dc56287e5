"""Weights that are quantized already: products and look-ups against their dequantized form.

The oracle is float64 on `QuantizedWeight.dequantize`, of weights drawn at random afresh at every
run; QUIRE_TEST_SEED=<seed from the report> repeats one.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.ops.quantized import QuantizedWeight
from quire.ops.table import load_ops
from tests.kernels.fused_common import new_generator

FORMS = ("plain", "zero", "offset", "codebook", "permutation")


@pytest.fixture
def generator() -> torch.Generator:
    return new_generator()


def draw_weight(
    generator: torch.Generator, form: str, n: int, k: int, *, bits: int = 4, group: int = 32
) -> QuantizedWeight:
    """Codes at random, scales and offsets from float16."""
    wanted = (n, -(-k // group))
    scale = (torch.randn(wanted, generator=generator) / 100).half().float()
    offset = (torch.randn(wanted, generator=generator) / 10).half().float()
    return QuantizedWeight(
        torch.randint(1 << bits, (n, k), generator=generator).to(torch.uint8),
        bits,
        scale,
        group,
        zero=torch.randint(1 << bits, wanted, generator=generator).float()
        if form == "zero"
        else None,
        offset=offset if form == "offset" else None,
        codebook=torch.randn(1 << bits, generator=generator) if form == "codebook" else None,
        permutation=torch.randperm(k, generator=generator) if form == "permutation" else None,
    )


def assert_close(y: Tensor, x: Tensor, weight: Tensor) -> None:
    """x quantized to int8 costs half a step of each x; rounding sums and W, little beside it."""
    exact = x.double() @ weight.double().t()
    step = x.double().abs().amax(1, keepdim=True) / 254
    size = x.double().abs() @ weight.double().abs().t()
    bound = step * weight.double().abs().sum(1) + 2e-2 * size
    assert bool(((y.double() - exact).abs() <= bound + 1e-6).all())


@pytest.mark.parametrize("provider", ["reference", "cpu"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_is_packed(
    provider: str, form: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    ops = load_ops(provider)  # type: ignore[arg-type]
    weight = draw_weight(generator, form, 45, 100)
    other = draw_weight(generator, "offset", 19, 100, bits=5)
    x = torch.randn(7, 100, generator=generator).to(dtype)
    for given in (weight, [weight, weight], [weight, other]):
        parts = given if isinstance(given, list) else [given]
        dense = torch.cat([part.dequantize() for part in parts])
        packed = ops.pack_linear(given, dtype=dtype)
        y = ops.linear(x, packed)
        assert y.dtype == dtype
        assert_close(y, x, dense)
        ids = torch.tensor([44, 0, 7])
        torch.testing.assert_close(
            ops.embedding(ids, packed), dense[ids].to(dtype), rtol=2e-2, atol=1e-3
        )
