"""Each architecture from GGUF: what Transformers computes of the model it was made from."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from quire.ops.table import load_ops
from tests.golden.gguf_model import write_gguf_model
from tests.golden.harness import PagedModel, load_decoder
from tests.golden.test_architectures import LOGIT_TOLERANCE
from tests.golden.tiny_models import MAX_POSITIONS, make_tiny
from tests.golden.transformers_oracle import NUM_TOKENS, find_golden

MODELS = [
    "llama",
    "llama-mqa-head-dim",
    "llama-rope-llama3",
    "llama-rope-linear",
    "llama-rope-yarn",
    "qwen2",
    "qwen3",
    "mistral-sliding",
    "phi3",
    "phi3-longrope",
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
]


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    expected = find_golden(make_tiny(name, seed=0, folder=tmp_path))
    path = write_gguf_model(tmp_path, tmp_path / "model.gguf")
    assert len(gguf.GGUFReader(path).tensors) > 10
    ops = load_ops()
    decoder = load_decoder(path, MAX_POSITIONS, ops)
    paged = PagedModel(decoder, ops, block_size=16, num_blocks=40)
    (sequence,) = paged.generate([expected.prompt], NUM_TOKENS)
    assert sequence.tokens == expected.tokens
    torch.testing.assert_close(
        torch.cat(sequence.logits), expected.logits, rtol=0.0, atol=LOGIT_TOLERANCE
    )
