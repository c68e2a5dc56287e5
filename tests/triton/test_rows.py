"""Norms, activations and the largest logit, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.ops.torch_ops.activations import ACTIVATIONS, activation
from quire.ops.triton import rows
from quire.ops.weights import GATED

HALF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11}
"""Half the distance of two neighbours at 1."""


def random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("width", [16, 96, 257])
def test_rms_norm(dtype: torch.dtype, width: int) -> None:
    x, residual = (random(3, width, dtype=dtype, seed=seed) for seed in (width, 1))
    gain = random(width, dtype=dtype, seed=2)
    total = x + residual
    wide = total.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain.double()
    # Two roundings to the dtype, and float32's within the sum.
    bound = exact.abs() * (2.5 * HALF[dtype] + (width + 8) * 2.0**-24)
    found, summed = rows.add_rms_norm(x, residual, gain, 1e-6)
    assert torch.equal(summed, total)
    assert ((found.double() - exact).abs() <= bound + 1e-7).all()
    assert torch.equal(rows.rms_norm(total, gain, 1e-6), found)
    assert torch.equal(rows.rms_norm(total[1:2], gain, 1e-6), found[1:2])


def test_a_norm_in_place_has_the_same_bits() -> None:
    """Of some columns, as queries and keys are of their product."""
    x, gain = random(5, 90, dtype=torch.float16, seed=1), random(40, dtype=torch.float16, seed=2)
    expected = x.clone()
    expected[:, 30:70] = rows.rms_norm(x[:, 30:70], gain, 1e-6)
    rows.normalize(x[:, 30:70], gain, 1e-6)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", HALF)
def test_layer_norm(dtype: torch.dtype) -> None:
    x, residual = (random(3, 100, dtype=dtype, seed=seed) for seed in (3, 4))
    gain, bias = (random(100, dtype=dtype, seed=seed) for seed in (5, 6))
    total = x + residual
    wide = total.double()
    away = wide - wide.mean(-1, keepdim=True)
    scaled = away / (away.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain.double()
    exact = scaled + bias.double()
    bound = exact.abs() * HALF[dtype] + (scaled.abs() + bias.double().abs() + 1) * 128 * 2.0**-24
    found, summed = rows.add_layer_norm(x, residual, gain, bias, 1e-5)
    assert torch.equal(summed, total)
    assert ((found.double() - exact).abs() <= bound).all()
    assert torch.equal(rows.layer_norm(total, gain, bias, 1e-5), found)


@pytest.mark.parametrize("dtype", [*HALF, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("norm", rows.coded_norms(torch.int8))
@pytest.mark.matrix
def test_a_norm_quantizes_its_rows_with_the_bits_of_two_kernels(
    norm: str, kind: torch.dtype, dtype: torch.dtype
) -> None:
    x, residual = (3.0 * random(5, 100, dtype=dtype, seed=seed) for seed in (1, 2))
    x[1] = residual[1] = 0.0
    x[2, 50] = torch.nan
    x[3, 7] = torch.inf
    gains = [random(100, dtype=dtype, seed=seed) for seed in (3, 4)]
    if norm.endswith("layer_norm"):
        gains[1][:] = 0.0  # so that a row is of zeros
    args = (x, *[residual] * norm.startswith("add"), *gains[: 1 + norm.endswith("layer_norm")])
    found, plain = rows.coded_norms(kind)[norm](*args, 1e-6), getattr(rows, norm)(*args, 1e-6)
    if not norm.startswith("add"):
        found, plain = (found,), (plain,)
    for a, b in zip(found, plain, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    codes, scales = rows.codes_of(found[0], kind)
    own_codes, own_scales = rows.codes_of(plain[0], kind)
    assert codes is rows.codes_of(found[0], kind)[0], "they were made by the norm"
    assert own_codes is not rows.codes_of(plain[0], kind)[0]
    assert torch.equal(codes.float(), own_codes.float())
    assert torch.equal(scales.nan_to_num(-1.0), own_scales.nan_to_num(-1.0))
    assert codes[0].float().abs().max() == (127 if kind == torch.int8 else 448)
    assert not codes[1].float().any()
    assert scales[2].isnan()


def test_rows_become_the_nearest_8_bit_floats() -> None:
    """As torch rounds; a tie goes to the even one. The largest is 448, so the scale is 1."""
    exact = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (exact[1:] + exact[:-1]) / 2
    row = torch.cat(
        (
            exact,
            between,
            torch.nextafter(between, exact[1:]),
            random(99, dtype=torch.float32, seed=3),
        )
    )
    x = torch.cat((row, -row))[None]
    codes, scales = rows.codes_of(x, torch.float8_e4m3fn)
    assert scales.tolist() == [1.0]
    assert torch.equal(codes.float(), x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind: Any) -> None:
    plain: Callable[[Tensor, Any], Tensor] = activation
    for dtype, half in HALF.items():
        x = 4.0 * random(5, 70, dtype=dtype, seed=7)
        expected = plain(x, kind).double()
        found = rows.activation(x, kind)
        # Both round a few float32 of the size of their input, and once to the dtype.
        size = x.double().abs()
        if kind in GATED:
            gate, up = size.chunk(2, dim=-1)
            size = gate * (1 + up) * (1 + gate * (kind == "relu2_mul"))
        bound = expected.abs() * 2 * half + (1 + size) * 2.0**-21
        assert ((found.double() - expected).abs() <= bound).all()
    sick = torch.full((1, 4), torch.nan)
    assert rows.activation(sick, kind).isnan().all()


def test_the_first_of_the_largest_logits() -> None:
    logits = random(6, 5001, dtype=torch.float32, seed=8)
    logits[0, [17, 4500]] = 9.0
    logits[1, 4999] = torch.nan
    logits[2, :] = -torch.inf
    logits[3, 5000] = torch.inf
    tokens, peaks = rows.argmax(logits)
    assert tokens[0] == 17
    assert peaks[0] == 9.0
    assert peaks[1] != peaks[1]
    assert peaks[2] == -torch.inf
    assert (tokens[3], peaks[3]) == (5000, torch.inf)
    top = logits[4:].max(-1)
    assert tokens[4:].tolist() == top.indices.tolist()
    assert peaks[4:].tolist() == top.values.tolist()
