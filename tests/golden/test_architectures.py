"""Each architecture against Transformers: random tiny models, float32, through the paged cache.

Logits agree within 1e-4, absolutely: they are of the order of 6, where one float32 rounding is
2.4e-7 and the two programs, which sum in different orders, differ by up to 5e-5 here. Greedy
tokens agree exactly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.core.config import OpsProvider
from quire.ops.providers import load_ops
from tests.golden.harness import PagedModel, load_decoder
from tests.golden.tiny_models import MAX_POSITIONS, TINY_MODELS, VOCAB_SIZE, make_tiny, of_each_kind
from tests.golden.transformers_oracle import NUM_TOKENS, Golden, find_golden, greedy

LOGIT_TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("provider", "block_size"),
    [
        ("cpu", 16),
        # `test_engine` has these once for each model.
        pytest.param("cpu", 8, marks=pytest.mark.slow),
        pytest.param("cpu", 32, marks=pytest.mark.slow),
    ],
)
def test_equals_transformers(
    golden: tuple[str, Path, Golden], provider: OpsProvider, block_size: int
) -> None:
    check(golden, provider, block_size)


@pytest.mark.parametrize("golden", of_each_kind(), indirect=True)
def test_torch_equals_transformers(golden: tuple[str, Path, Golden]) -> None:
    check(golden, "reference", 16)


def check(golden: tuple[str, Path, Golden], provider: OpsProvider, block_size: int) -> None:
    """Compare the logits of all tokens, and the greedy ones."""
    _, folder, expected = golden
    ops = load_ops(provider)
    decoder = load_decoder(folder, MAX_POSITIONS, ops)
    model = PagedModel(
        decoder,
        ops,
        block_size=block_size,
        num_blocks=40,
        seed=block_size,
    )
    (sequence,) = model.generate([expected.prompt], NUM_TOKENS)
    assert sequence.tokens == expected.tokens
    torch.testing.assert_close(
        torch.cat(sequence.logits), expected.logits, rtol=0.0, atol=LOGIT_TOLERANCE
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_MODELS)
def test_128_tokens_are_transformers(name: str, tmp_path: Path) -> None:
    expected = find_golden(make_tiny(name, seed=1, folder=tmp_path), 128)
    ops = load_ops("cpu")
    paged = PagedModel(
        load_decoder(tmp_path, MAX_POSITIONS, ops), ops, block_size=16, num_blocks=40
    )
    (sequence,) = paged.generate([expected.prompt], 128)
    assert sequence.tokens == expected.tokens
    torch.testing.assert_close(
        torch.cat(sequence.logits), expected.logits, rtol=0.0, atol=LOGIT_TOLERANCE
    )


def test_dynamic_rope_equals_transformers_past_the_trained_length(tmp_path: Path) -> None:
    model = make_tiny("llama-rope-dynamic", seed=0, folder=tmp_path)
    ops = load_ops("cpu")
    decoder = load_decoder(tmp_path, MAX_POSITIONS, ops)
    prompt = torch.randint(2, VOCAB_SIZE, (20,), generator=torch.Generator().manual_seed(3))
    tokens = greedy(model, prompt.tolist(), NUM_TOKENS)
    paged = PagedModel(decoder, ops, block_size=16, num_blocks=16)
    (sequence,) = paged.generate([prompt.tolist()], NUM_TOKENS)
    assert sequence.tokens == tokens
