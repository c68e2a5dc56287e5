"""The roofline: which side of it a step is on, and that it is smooth and monotonic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.cost import PROFILES, RooflineCost, page_size

COST = RooflineCost(
    weight_bytes=1e9,
    kv_bytes_per_token=1e5,
    flops_per_token=1e9,
    flops_per_row=0.0,
    flops_per_pair=0.0,
    bytes_per_second=1e10,
    flops_per_second=1e12,
    attention_flops_per_second=1e12,
)


def test_a_small_batch_costs_its_bytes_and_a_large_one_its_arithmetic() -> None:
    assert COST.seconds(1, 1, 1) == pytest.approx(0.1, rel=1e-3)
    assert COST.seconds(2, 2, 2) / COST.seconds(1, 1, 1) < 1.001
    assert COST.seconds(10_000, 1, 0) == pytest.approx(10.0, rel=1e-3)


def test_the_corner_is_smooth() -> None:
    assert COST.seconds(100, 1, 0) == pytest.approx(0.1 * 2**0.25)


def test_more_of_anything_never_takes_less() -> None:
    for profile in ("context", "tokens", "seqs"):
        steps = [
            COST.seconds(
                n if profile == "tokens" else 64,
                n if profile == "seqs" else 8,
                100 * n if profile == "context" else 800,
            )
            for n in range(1, 300)
        ]
        assert steps == sorted(steps)


def test_an_empty_step_is_free() -> None:
    assert COST.seconds(0, 0, 0) == 0.0


def test_sliding_layers_read_no_further_than_their_window() -> None:
    plain = replace(COST, weight_bytes=0.0, flops_per_token=0.0, flops_per_pair=1.0)
    half = replace(plain, window=100, window_share=0.5)
    assert half.seconds(4, 4, 400) == plain.seconds(4, 4, 400)
    assert half.seconds(4, 4, 4000) == pytest.approx(plain.seconds(4, 4, 2200))


def test_profiles_are_in_si_units() -> None:
    for name, profile in PROFILES.items():
        assert profile.name == name
        assert 5e10 < profile.bytes_per_second < 1e13
        rates = profile.flops_per_second
        assert 1e12 < rates["float32"] < rates["bfloat16"] < rates["int8"] < 1e16


@pytest.mark.parametrize(
    ("length", "tokens"),
    [(1, 16), (256, 16), (257, 32), (1024, 64), (1025, 128), (4096, 256), (131_072, 256)],
)
def test_a_tpu_page_is_a_16th_of_the_context_within_bounds(length: int, tokens: int) -> None:
    assert page_size(length) == tokens
