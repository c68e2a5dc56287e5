"""The canonical form of quantized weights, against its formula written out with loops."""

from __future__ import annotations

import pytest
import torch

from quire.ops.torch_ops.quantized import QuantizedWeight

N, K, GROUP = 3, 10, 4


def weight(kind: str, seed: int = 0) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(16, (N, K), generator=generator, dtype=torch.uint8)
    scale = torch.rand(N, 3, generator=generator)
    second = torch.rand(N, 3, generator=generator)
    return QuantizedWeight(
        codes,
        4,
        scale,
        GROUP,
        zero=second if kind == "zero" else None,
        offset=second if kind == "offset" else None,
        codebook=torch.linspace(-1, 1, 16) if kind == "codebook" else None,
        permutation=torch.arange(K).flip(0) if kind == "permutation" else None,
    )


KINDS = ("plain", "zero", "offset", "codebook", "permutation")


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula(kind: str) -> None:
    w = weight(kind)
    dense = w.dequantize()
    for n in range(N):
        for k in range(K):
            code = w.codes[n, k]
            value = code.float() if w.codebook is None else w.codebook[int(code)]
            if w.zero is not None:
                value = value - w.zero[n, k // GROUP]
            value = value * w.scale[n, k // GROUP]
            if w.offset is not None:
                value = value + w.offset[n, k // GROUP]
            column = k if w.permutation is None else int(w.permutation[k])
            assert dense[n, column] == value


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_codes_may_be_floats(dtype: torch.dtype) -> None:
    codes = torch.randn(N, K).to(dtype)
    w = QuantizedWeight(codes, 8, torch.full((N, 1), 0.5), K)
    assert torch.equal(w.dequantize(), codes.float() * 0.5)
