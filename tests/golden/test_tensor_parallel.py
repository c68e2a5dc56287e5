"""Ranks that share a model compute what one process computes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from quire.checkpoint.source import resolve
from quire.core.config import RankShare
from quire.core.model_config import ModelConfig
from quire.models.decoder import Decoder
from quire.models.registry import model_config
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.sharded import SharedParameters
from quire.models.weights.shares import divided_model, shared_model
from quire.models.weights.stored import StoredParameters
from quire.ops.interface import Ops
from quire.ops.providers import load_ops
from quire.ops.rank_group import RankGroup
from tests.arrays import numpy_dtype
from tests.golden.harness import PagedModel, Sequence
from tests.golden.ranks import run_ranks
from tests.golden.tiny_models import (
    FEW_KINDS,
    MAX_POSITIONS,
    RECURRENT_MODELS,
    TINY_MODELS,
    VOCAB_SIZE,
    make_tiny,
)
from tests.native import tensor_ops

BLOCKS = 200
NUM_TOKENS = 4


def prompts() -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in (1, 9, 40)]


def load(
    folder: Path, group: RankGroup | None, dtype: torch.dtype, packing: str | None
) -> tuple[Decoder, Ops]:
    """The model in a folder, or a rank's share of it."""
    source = resolve(str(folder))
    model = model_config(source.config)
    ops = load_ops("cpu", quantization=packing, group=group)
    stored = StoredParameters(open_weights(source), model, numpy_dtype(dtype))
    if group is None:
        return Decoder(model, stored, MAX_POSITIONS, ops), ops
    whole = divided_model(model, group.ranks)
    parameters = SharedParameters(stored, RankShare(group.rank, group.ranks, whole, {}))
    shared = shared_model(model, group.rank, group.ranks)
    return Decoder(shared, parameters, MAX_POSITIONS, ops), ops


def build(
    folder: Path,
    group: RankGroup | None,
    dtype: torch.dtype = torch.float32,
    packing: str | None = None,
) -> PagedModel:
    decoder, ops = load(folder, group, dtype, packing)
    return PagedModel(decoder, ops, block_size=16, num_blocks=BLOCKS, seed=1, dtype=dtype)


def tolerance(model: ModelConfig, logits: torch.Tensor) -> float:
    """Of sums in another order: each of K terms' roundings, through as many sums as there are, one
    after the other, relative to the largest logit."""
    longest = max(model.intermediate_size, model.hidden_size)
    sums = 2 * model.num_hidden_layers + 1
    return torch.finfo(torch.float32).eps * longest * sums * float(logits.abs().max())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(
            pytest.param(name, 2, marks=[] if name in FEW_KINDS else pytest.mark.slow)
            for name in TINY_MODELS
        ),
        ("olmo2", 4),  # 4 norm the same 2 heads of k
        *((name, 2) for name in RECURRENT_MODELS),
        ("mamba2", 4),
    ],
)
def test_ranks_give_one_ranks_tokens(name: str, count: int, tiny_folder: Path) -> None:
    def generate(group: RankGroup | None) -> list[Sequence]:
        return build(tiny_folder, group).generate(prompts(), NUM_TOKENS)

    whole, ranks = generate(None), run_ranks(count, generate)
    model = model_config(resolve(str(tiny_folder)).config)
    for expected, first, *others in zip(whole, *ranks, strict=True):
        logits, one = torch.cat(expected.logits), torch.cat(first.logits)
        # Ranks that gather the columns of norms add nothing up.
        near = 0.0 if model.sub_norms else tolerance(model, logits)
        torch.testing.assert_close(one, logits, rtol=0, atol=near)
        assert first.tokens == expected.tokens
        for other in others:
            assert torch.equal(torch.cat(other.logits), one)
            assert other.tokens == first.tokens


@pytest.mark.parametrize("name", ["llama", "gemma2"])  # the second is tied, and has a softcap
@pytest.mark.parametrize(
    ("dtype", "packing"),
    [
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.bfloat16, "int8"),
        (torch.float32, "int4_g32"),
    ],
)
def test_embeddings_and_logits_have_one_ranks_bits(
    name: str, dtype: torch.dtype, packing: str | None, tmp_path: Path
) -> None:
    """Though each rank has a part of the vocabulary."""
    make_tiny(name, seed=3, folder=tmp_path)
    ids = torch.tensor([0, VOCAB_SIZE - 1, VOCAB_SIZE // 4, VOCAB_SIZE // 4 - 1, 7, 7])

    @torch.inference_mode()
    def both(group: RankGroup | None) -> tuple[torch.Tensor, torch.Tensor]:
        decoder, native = load(tmp_path, group, dtype, packing)
        ops = tensor_ops(native)
        embeddings = decoder.embed(ops, ids)
        return embeddings, decoder.compute_logits(ops, embeddings)

    embeddings, logits = both(None)
    assert logits.shape == (len(ids), VOCAB_SIZE)
    for shared in run_ranks(4, both):
        assert torch.equal(shared[0], embeddings)
        assert torch.equal(shared[1], logits)


@pytest.mark.parametrize(
    ("ranks", "dtype", "packing"),
    [
        (2, torch.float32, None),
        (4, torch.bfloat16, None),
        (2, torch.float16, None),
        (2, torch.bfloat16, "int8"),
        (4, torch.float32, "int4_g32"),
    ],
)
def test_a_sequence_has_the_same_bits_in_any_batch(
    ranks: int, dtype: torch.dtype, packing: str | None, tmp_path: Path
) -> None:
    make_tiny("llama", seed=4, folder=tmp_path)

    def together_and_alone(group: RankGroup) -> list[tuple[Sequence, Sequence]]:
        together = build(tmp_path, group, dtype, packing).generate(prompts(), NUM_TOKENS)
        alone = build(tmp_path, group, dtype, packing)
        return [
            (first, alone.generate([prompt], NUM_TOKENS)[0])
            for prompt, first in zip(prompts(), together, strict=True)
        ]

    found = run_ranks(ranks, together_and_alone)
    for (first, alone), *others in zip(*found, strict=True):
        logits = torch.cat(first.logits)
        assert first.tokens == alone.tokens
        assert torch.equal(logits, torch.cat(alone.logits))
        assert all(torch.equal(logits, torch.cat(other.logits)) for other, _ in others)
