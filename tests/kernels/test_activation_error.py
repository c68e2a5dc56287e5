"""What rounding activations costs a product, as docs/quantization.md states it.

The oracle is float64 with the quantized weight's own values; inputs are drawn afresh at every run.
"""

from __future__ import annotations

import pytest
import torch

from quire.core.quantization import Form
from quire.models.weights.packed_bytes import rounds_activations
from quire.ops.torch_ops.reference import quantize_heads
from quire.quant.names import NAMES, RANDOM_ONLY
from tests.kernels.fused_common import new_generator
from tests.native import load_ops

pytestmark = pytest.mark.matrix

N, K, ROWS = 256, 1024, 16


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("name", sorted(NAMES.keys() - RANDOM_ONLY))
def test_the_stated_error_of_a_product(name: str, outliers: bool) -> None:
    generator = new_generator()
    weight = NAMES[name].layers.quantize(torch.randn(N, K, generator=generator).numpy())
    x = torch.randn(ROWS, K, generator=generator)
    if outliers:
        x[:, 7] *= 20
    ops = load_ops("cpu", num_threads=2)
    exact = x.double() @ torch.from_numpy(weight.dequantize()).double().t()
    error = (ops.linear(x, ops.pack_linear(weight)).double() - exact).norm() / exact.norm()
    if not rounds_activations([NAMES[name].layers.form(K)], K):
        assert 0.0005 < error < 0.0025  # bfloat16
        return
    # A step of peak / 127, of which rounding loses 1 / √12 on average.
    peak_over_rms = float(x.abs().amax(1).norm() * K**0.5 / x.norm())
    expected = peak_over_rms / 127 / 12**0.5
    assert expected > 0.006
    codebook = 0.009 if name in ("nf4", "fp4") else 0.0  # rounded to bytes
    assert 0.85 * expected < error < 1.15 * expected + codebook + 0.0005


@pytest.mark.parametrize(
    ("dtype", "stated"),
    [(torch.int8, 0.007), (torch.float8_e4m3fn, 0.03), (torch.float8_e5m2, 0.055)],
)
def test_the_stated_error_of_a_kv_cache(dtype: torch.dtype, stated: float) -> None:
    """Of `--kv-cache-dtype`, for bell-shaped keys and values."""
    heads = torch.randn(200, 8, 128, generator=new_generator())
    codes, scale = quantize_heads(heads, dtype)
    error = float((codes.float() * scale.float().unsqueeze(-1) - heads).norm() / heads.norm())
    assert 0.8 * stated < error < stated


@pytest.mark.parametrize(
    ("forms", "rounds"),
    [
        ([Form("int8", 8, 512)], True),
        ([Form("int8", 8, 512, float_activations=True)], False),
        ([Form("int8", 8, 128, float_activations=True)], True),
        ([Form("uint8", 4, 128, "zero", float_activations=True)], True),
        ([Form("uint8", 4, 24, "offset")], False),
        ([Form("float8_e4m3fn", 8, 512)], False),
        ([Form("int8", 8, 512), None], False),
        ([Form("int8", 8, 512), Form("uint8", 4, 32, "offset")], True),
        ([Form("int8", 8, 512), Form("float8_e4m3fn", 8, 512)], False),
    ],
)
def test_which_forms_round_activations(forms: list[Form | None], rounds: bool) -> None:
    assert rounds_activations(forms, 512) == rounds
