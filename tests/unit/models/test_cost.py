"""A model's cost from its configuration: bytes and operations counted by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from quire.bench.kernels.rates import PROMPT, overlap_of
from quire.core.cost import PROFILES, RooflineCost, together
from quire.explain.limits import FLOPS_SHARE, Limits, profile_of
from quire.models.cost import product_type, roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect

LAYERS = 28 * (1024 * (16 + 2 * 8) * 128 + 16 * 128 * 1024 + 3 * 1024 * 3072)
HEAD = 151_936 * 1024


def cost_of(model: str, hardware: str, **flags: Any) -> RooflineCost:
    args = EngineArgs(model=model, load_format="dummy", dtype="bfloat16", **flags)
    return roofline(resolve(args, detect()).config, PROFILES[hardware])


def test_qwen3_by_hand() -> None:
    cost = cost_of("qwen3-0.6b", "h100")
    assert cost.flops_per_token == 2 * LAYERS
    assert cost.flops_per_row == 2 * HEAD
    assert cost.flops_per_pair == 4 * 28 * 16 * 128
    assert cost.kv_bytes_per_token == 2 * 28 * 8 * 128 * 2
    assert cost.weight_bytes == pytest.approx(2 * (LAYERS + HEAD), rel=1e-3)


def test_experts_by_hand() -> None:
    """Qwen3-30B-A3B: 48 layers with 128 experts, of which a token chooses 8."""
    cost = cost_of("qwen3-30b-a3b", "h100")
    expert = 3 * 2048 * 768
    attention = 2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048
    rest = 48 * (attention + 128 * 2048)
    assert cost.expert_bytes == 2 * 48 * 128 * expert
    assert cost.unchosen == pytest.approx(15 / 16)
    assert cost.flops_per_token == 2 * (rest + 48 * 8 * expert)
    assert cost.weight_bytes == pytest.approx(2 * (rest + 151_936 * 2048), rel=1e-3)
    one, eight, many = (cost.seconds(n, n, 0) for n in (1, 8, 512))
    assert eight - one == pytest.approx(
        cost.expert_bytes * ((15 / 16) - (15 / 16) ** 8) / cost.bytes_per_second, rel=0.02
    )
    assert many > (cost.weight_bytes + cost.expert_bytes) / cost.bytes_per_second


def test_quantization_saves_bytes_and_multiplies_faster() -> None:
    plain, int8, wide, small = (
        cost_of("opt-125m", "epyc-9654", **flags)
        for flags in (
            {},
            {"quantization": "int8"},
            {"quantization": "int8_w8a16"},
            {"kv_cache_dtype": "int8"},
        )
    )
    assert int8.weight_bytes == wide.weight_bytes < 0.55 * plain.weight_bytes
    assert int8.flops_per_second == 2 * wide.flops_per_second
    assert small.kv_bytes_per_token < 0.52 * plain.kv_bytes_per_token


@pytest.mark.parametrize(
    ("flags", "product"),
    [
        ({}, "bfloat16"),
        ({"quantization": "int8"}, "int8"),
        ({"quantization": "int8_w8a16"}, "int8_w8a16"),
        ({"quantization": "int4_g32"}, "int4"),
        ({"quantization": "fp8"}, "fp8"),
        ({"quantization": "q4_k"}, "int4"),
    ],
)
def test_a_format_has_its_own_measured_rates(flags: dict[str, Any], product: str) -> None:
    """Seen: int4 predicted at int8's rate took half of the time."""
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy", dtype="bfloat16", **flags)
    config = resolve(args, detect()).config
    assert product_type(config) == product
    rates = {name: {2: rate} for name, rate in (("bfloat16", 2e11), ("float32", 1e11))}
    limits = Limits("a processor", 2, {2: 30e9}, rates)
    unmeasured = roofline(config, profile_of(limits, 2))
    assert unmeasured.bytes_per_second == 30e9
    limits = msgspec.structs.replace(
        limits, reads={product: {2: 7e9}}, products={product: {2: 5e10}}, keys={2: 9e9}
    )
    cost = roofline(config, profile_of(limits, 2))
    parts = cost.parts(4, 2, 100)
    # Of these, fp8 alone leaves the output projection in bfloat16.
    other = product == "fp8"
    head = cost.head_bytes / (30e9 if other else 7e9)
    assert parts.weights == pytest.approx((cost.weight_bytes - cost.head_bytes) / 7e9 + head)
    logits = 2 * cost.flops_per_row / (FLOPS_SHARE * 2e11 if other else 5e10)
    assert parts.products == pytest.approx(4 * cost.flops_per_token / 5e10 + logits)
    assert parts.others == pytest.approx(100 * cost.kv_bytes_per_token / 9e9)
    assert roofline(config, profile_of(limits, 2, peaks=True)).bytes_per_second == 30e9


def test_a_few_rows_take_what_was_measured() -> None:
    seconds = {1: 1.0, 2: 0.9, 4: 1.1, 8: 2.0, PROMPT: 16.0}
    overlap = overlap_of(seconds)
    for rows, both in seconds.items():
        assert together(3.0, 3.0 * rows / 8, overlap) == pytest.approx(3.0 * both)
    assert together(3.0, 3.0 * 6 / 8, overlap) == pytest.approx(3.0 * (1.1 + 2.0) / 2)
    assert together(3.0, 0.0, overlap) == 3.0
    assert together(3.0, 300.0, overlap) == 300.0
    limits = Limits("a processor", 2, {2: 30e9}, {"float32": {2: 1e11}}, overlaps={"int8": overlap})
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy", quantization="int8")
    config = resolve(args, detect()).config
    assert limits.usable
    assert roofline(config, profile_of(limits, 2)).overlap == overlap
    for wrong in (overlap[::-1], ((1.0, -1.0),), ((1.0, math.inf),), ((math.nan, 1.0),)):
        assert not msgspec.structs.replace(limits, overlaps={"int8": wrong}).usable
