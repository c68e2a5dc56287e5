"""The memory floor against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.bench.floor import StepBytes, step_bytes
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
