"""Rows of q and k are put in the order in which the kernels turn them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from quire.core.dtypes import BFLOAT16, FLOAT32, HostArray, converted
from quire.core.model_config import RopeConfig
from quire.core.quantized import QuantizedWeight
from quire.models.layout import Layout
from quire.models.specs import linears
from quire.models.weights.row_order import packed_bias, packed_rows, row_order
from quire.quant.names import rounding
from tests.unit.executor.configs import TINY

ROPE = RopeConfig(10_000.0, rotary_dim=4, interleaved=True)
MODEL = replace(TINY, rope=ROPE, qkv_bias=True)
QKV = linears(Layout(MODEL).layers[0])[0].weight
"""4 heads of q, 2 of k and 2 of v, each of 8 rows."""
HEAD = [0, 2, 1, 3, 4, 5, 6, 7]
ORDER = [8 * head + row for head in range(6) for row in HEAD] + list(range(48, 64))


def test_pairs_of_neighbours_become_halves() -> None:
    order = row_order(QKV)
    assert order.tolist() == ORDER


def test_layers_without_such_a_rope_stay() -> None:
    plain = replace(MODEL, rope=replace(ROPE, interleaved=False))
    without = replace(MODEL, rotated_layers=(False,) * MODEL.num_hidden_layers)
    for model in (plain, without):
        assert row_order(linears(Layout(model).layers[0])[0].weight) is None
    assert row_order(linears(Layout(MODEL).layers[0])[1].weight) is None


@pytest.mark.parametrize("cuts", [[], [32, 48], [5, 6, 40]])
def test_dense_parts_may_be_cut_anywhere(cuts: list[int]) -> None:
    whole = converted(drawn(), BFLOAT16)
    [found] = packed_rows(QKV, np.split(whole, cuts))
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, whole[ORDER])


def test_quantized_rows_move_with_their_scales() -> None:
    rounder = rounding("int4_g32").layers
    assert rounder is not None
    parts = [rounder.quantize(part) for part in np.split(drawn(), [32, 48])]
    found = packed_rows(QKV, parts)
    values = [part.dequantize() for part in found if isinstance(part, QuantizedWeight)]
    whole = np.concatenate([part.dequantize() for part in parts])
    assert np.array_equal(np.concatenate(values), whole[ORDER])


def test_biases_move_with_their_rows() -> None:
    bias = np.arange(64, dtype=np.float32)
    assert packed_bias(QKV, bias).tolist() == ORDER


def test_rows_have_the_factor_of_their_part() -> None:
    parameter = msgspec.structs.replace(QKV, factors=(2.0, 0.5, 1.0))
    factors = np.repeat([2.0, 0.5, 1.0], [32, 16, 16]).astype(np.float32)
    assert packed_bias(parameter, np.ones(64, np.float32)).tolist() == factors.tolist()
    whole = drawn()
    [found] = packed_rows(parameter, np.split(whole, [5, 40]))
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, whole[ORDER] * factors[:, np.newaxis])


@pytest.mark.parametrize("name", ["int4_g32", "q4_k"])
def test_scales_of_quantized_rows_have_their_factor(name: str) -> None:
    rounder = rounding(name).layers
    whole = np.tile(drawn(), (1, 8))
    part = rounder.quantize(whole)
    parameter = msgspec.structs.replace(QKV, paired=0, factors=(2.0, 0.5, 4.0))
    [found] = packed_rows(parameter, [part])
    assert isinstance(found, QuantizedWeight)
    factors = np.repeat([2.0, 0.5, 4.0], [32, 16, 16])[:, np.newaxis]
    assert np.array_equal(found.dequantize(), part.dequantize() * factors)  # powers of two


def drawn() -> HostArray:
    values: HostArray = np.random.default_rng(0).standard_normal((64, 32)).astype(FLOAT32)
    return values
