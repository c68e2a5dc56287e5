"""The canonical form of quantized weights, against its formula written out with loops."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.dtypes import FLOAT8_E4M3, FLOAT8_E5M2, DType
from quire.core.quantized import QuantizedWeight, can_follow, joined

N, K, GROUP = 3, 10, 4


def weight(kind: str, seed: int = 0) -> QuantizedWeight:
    draw = np.random.default_rng(seed)
    codes = draw.integers(16, size=(N, K), dtype=np.uint8)
    scale, second = (draw.random((N, 3), np.float32) for _ in range(2))
    return QuantizedWeight(
        codes,
        4,
        scale,
        GROUP,
        zero=second if kind == "zero" else None,
        offset=second if kind == "offset" else None,
        codebook=np.linspace(-1, 1, 16, dtype=np.float32) if kind == "codebook" else None,
        permutation=np.arange(K)[::-1].copy() if kind == "permutation" else None,
    )


KINDS = ("plain", "zero", "offset", "codebook", "permutation")


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula(kind: str) -> None:
    w = weight(kind)
    dense = w.dequantize()
    for n in range(N):
        for k in range(K):
            code = w.codes[n, k]
            value = np.float32(code) if w.codebook is None else w.codebook[int(code)]
            if w.zero is not None:
                value = value - w.zero[n, k // GROUP]
            value = value * w.scale[n, k // GROUP]
            if w.offset is not None:
                value = value + w.offset[n, k // GROUP]
            column = k if w.permutation is None else int(w.permutation[k])
            assert dense[n, column] == value


@pytest.mark.parametrize("kind", KINDS)
def test_parts_follow_each_other(kind: str) -> None:
    a, b = weight(kind), weight(kind, seed=1)
    assert can_follow(a, b)
    whole = joined([a, b])
    assert np.array_equal(whole.dequantize(), np.concatenate([a.dequantize(), b.dequantize()]))
    assert np.array_equal(whole.rows(N, N).dequantize(), b.dequantize())
    for other in KINDS:
        assert can_follow(a, weight(other)) == (kind == other)


@pytest.mark.parametrize("dtype", [FLOAT8_E4M3, FLOAT8_E5M2])
def test_codes_may_be_floats(dtype: DType) -> None:
    codes = np.random.default_rng(0).standard_normal((N, K)).astype(dtype)
    w = QuantizedWeight(codes, 8, np.full((N, 1), 0.5, np.float32), K)
    wanted = codes.astype(np.float32) * np.float32(0.5)
    assert np.array_equal(joined([w, w]).dequantize(), np.concatenate([wanted] * 2))


def test_columns_are_cut_between_groups() -> None:
    w = weight("offset")
    dense = w.dequantize()
    assert np.array_equal(w.columns(GROUP, K - GROUP).dequantize(), dense[:, GROUP:])
    with pytest.raises(ValueError, match="no whole groups"):
        w.columns(1, GROUP)
    with pytest.raises(ValueError, match="out of order"):
        weight("permutation").columns(0, GROUP)


def test_what_does_not_fit() -> None:
    codes, scale = np.zeros((N, K), np.uint8), np.ones((N, 3), np.float32)
    with pytest.raises(ValueError, match="codes are"):
        QuantizedWeight(codes.astype(np.float32), 4, scale, GROUP)
    with pytest.raises(ValueError, match="scale is"):
        QuantizedWeight(codes, 4, scale, 5)
    with pytest.raises(ValueError, match="not both"):
        QuantizedWeight(codes, 4, scale, GROUP, zero=scale, offset=scale)
    with pytest.raises(ValueError, match="codebook"):
        QuantizedWeight(codes, 4, scale, GROUP, codebook=np.ones(8, np.float32))
    with pytest.raises(ValueError, match="permutation"):
        QuantizedWeight(codes, 4, scale, GROUP, permutation=np.arange(3))
