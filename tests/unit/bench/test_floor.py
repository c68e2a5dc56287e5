"""The memory floor against sums done by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from quire.bench.floor import TURN_STEPS, StepBytes, in_turns, step_bytes
from quire.core.layers import MoEConfig, RouteSpec, ShortConvConfig, SubLayerKind
from quire.core.model_config import ModelConfig

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)


def read(model: ModelConfig, output_len: int = 5) -> StepBytes:
    return step_bytes(
        model,
        dtype="float32",
        weight_bytes=10_000,
        kv_bytes_per_token=128,
        batch_size=3,
        input_len=10,
        output_len=output_len,
    )


def test_by_hand() -> None:
    # Decode steps attend to 11, 12, 13 and 14 tokens: 12.5 on average, 128 bytes each, 3 times.
    found = read(MODEL)
    assert found == StepBytes(weights=10_000, kv=3 * 12.5 * 128)
    # 60 tok/s over 3 sequences are 20 steps/s of 14,800 bytes: 296,000 of 592,000 bytes/s.
    assert found.floor_fraction(60.0, 3, 592e-6) == pytest.approx(0.5)


def test_an_untied_embedding_is_looked_up_not_read() -> None:
    assert read(replace(MODEL, tie_word_embeddings=False)).weights == 10_000 - 100 * 8 * 4


def test_a_batch_reads_the_experts_that_it_chooses() -> None:
    model = replace(MODEL, moe=MoEConfig(8, 4, RouteSpec(2)))
    found = step_bytes(
        model, dtype="float32", weight_bytes=10_000, expert_bytes=6_400, kv_bytes_per_token=128,
        batch_size=3, input_len=10, output_len=5,
    )  # fmt: skip
    assert found.weights == 10_000 - 6_400 * 0.75**3


def test_learned_positions_are_looked_up() -> None:
    model = replace(MODEL, learned_positions_offset=2)
    assert read(model).weights == 10_000 - (64 + 2) * 8 * 4


def test_a_window_bounds_the_context() -> None:
    everywhere = replace(MODEL, sliding_window=12)  # 11, 12, 12, 12
    assert read(everywhere).kv == 3 * 11.75 * 128
    half = replace(everywhere, sliding_layers=(True, False))
    assert read(half).kv == 3 * (11.75 + 12.5) / 2 * 128


def test_bfloat16_tables_are_half_as_large() -> None:
    found = step_bytes(
        replace(MODEL, tie_word_embeddings=False),
        dtype="bfloat16",
        weight_bytes=5_000,
        kv_bytes_per_token=64,
        batch_size=1,
        input_len=1,
        output_len=2,
    )
    assert found == StepBytes(weights=5_000 - 1_600, kv=2 * 64)


def test_states_are_read_and_written() -> None:
    kinds: tuple[SubLayerKind, ...] = ("recurrent", "attention")
    model = replace(MODEL, recurrent=ShortConvConfig(channels=8, width=3), sublayers=kinds)
    found = read(model)
    assert found.states == 2 * 3 * (2 * 8) * 4  # batch · (width - 1) · channels · bytes, twice
    plain = replace(found, states=0.0)
    assert found.floor_fraction(60.0, 3, 1e-3) > plain.floor_fraction(60.0, 3, 1e-3)


def test_turns_compare_with_the_reads_before_and_after() -> None:
    """Decoding always takes half of the memory's speed, which changes while it decodes."""
    speeds = iter([20.0, 20.0, 5.0, 5.0])  # GB/s
    read_at: list[int] = []
    taken = 0

    def read() -> float:
        read_at.append(taken)
        return next(speeds)

    def steps() -> Iterator[tuple[int, float]]:
        nonlocal taken
        cold, prompt = (3, 9.0), (2, 7.0)  # neither counts
        for rate, uncounted in ((10.0, prompt), (4.0, (0, 7.0)), (2.5, (3, 3 / 2.5))):
            for step in (cold, uncounted, *[(3, 3 / rate)] * (TURN_STEPS - 2)):
                taken += 1
                yield step

    rates, bandwidths = zip(*in_turns(steps(), read, 3), strict=True)
    assert rates == pytest.approx((10.0, 4.0, 2.5))
    assert bandwidths == pytest.approx((20.0, 8.0, 5.0))
    assert read_at == [TURN_STEPS * turn for turn in range(4)]


def test_a_last_turn_may_be_short_or_empty() -> None:
    steps = [(1, 0.5)] * (TURN_STEPS + 3)
    assert list(in_turns(steps, lambda: 8.0, 1)) == [(2.0, 8.0)] * 2
    assert list(in_turns(steps[: TURN_STEPS + 1], lambda: 8.0, 1)) == [(2.0, 8.0)]
    assert list(in_turns(steps[:1], lambda: 8.0, 1)) == []
