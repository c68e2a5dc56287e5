"""A sequence's logits are the same bits alone and in company, whole and in chunks."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from quire.core.config import OpsProvider
from quire.ops.providers import load_ops
from tests.golden.harness import PagedModel, Sequence, load_decoder
from tests.golden.tiny_models import (
    FEW_KINDS,
    MAX_POSITIONS,
    RECURRENT_MODELS,
    VOCAB_SIZE,
    make_tiny,
    of_each_type,
)

NUM_SEQUENCES, SOME, FEW = 64, 24, 8
NUM_TOKENS = 4
IN_MAKE_TEST = {
    *FEW_KINDS, "llama", "lfm2-moe", "qwen3_5-moe", "kimi-linear", "granite4-hybrid", "falcon-h1",
    "nemotron-h",
}  # fmt: skip
"""Of `FEW_CASES`, `make test` runs these."""
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "int4": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def prompts(seed: int, count: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(2, VOCAB_SIZE) for _ in range(draw.choice([1, 2, 7, 31, 33, 64, 150]))]
        for _ in range(count)
    ]


CASES: list[tuple[str, str, str, OpsProvider]] = [
    ("llama", "float32", "float32", "cpu"),
    ("mistral-sliding", "bfloat16", "int8", "cpu"),
    ("qwen3", "bfloat16", "bfloat16", "cpu"),
    ("gemma3", "bfloat16", "int4", "cpu"),
    ("gemma4", "bfloat16", "bfloat16", "cpu"),
    ("qwen3", "bfloat16", "fp8_e4m3", "cpu"),
    ("phi3", "float32", "fp8_e5m2", "cpu"),
    ("gemma2", "float32", "bfloat16", "cpu"),
    ("gemma", "float16", "float16", "cpu"),
    ("mixtral", "bfloat16", "bfloat16", "cpu"),
    ("gpt-oss", "bfloat16", "int4", "cpu"),
    ("deepseek-v2", "bfloat16", "int8", "cpu"),
    ("deepseek-v3", "bfloat16", "bfloat16", "cpu"),
]


TURNS = [("bfloat16", "bfloat16"), ("bfloat16", "int8"), ("float32", "float32")]
FEW_CASES: list[tuple[str, str, str, OpsProvider]] = [
    *(("llama", "float32", held, "reference") for held in ("float32", "int8", "fp8_e4m3", "int4")),
    *(
        (name, *TURNS[turn % len(TURNS)], "cpu")
        for turn, name in enumerate([*of_each_type(), *of_each_type(RECURRENT_MODELS)])
    ),
    ("starcoder2", "bfloat16", "int4", "cpu"),
    ("glm4-moe-lite", "bfloat16", "fp8_e4m3", "cpu"),
]
"""Of kernels that `CASES` have, and of the slow reference; fewer sequences say as much."""


def in_make_test(case: tuple[str, str, str, OpsProvider]) -> bool:
    """Return whether one of `FEW_CASES` is more than a repetition."""
    name, _, kv_dtype, provider = case
    return name in IN_MAKE_TEST and (provider == "cpu" or kv_dtype in ("float32", "fp8_e4m3"))


def sample(prompts: list[list[int]], count: int, case: str) -> list[int]:
    """Return the numbers of `count` prompts, among them one of each length; they vary by case."""
    draw = random.Random(f"{os.environ['QUIRE_TEST_SEED']} {case}")
    numbers = draw.sample(range(len(prompts)), len(prompts))
    first = {len(prompts[number]): number for number in numbers}.values()
    rest = [number for number in numbers if number not in first]
    return sorted([*first, *rest][:count])


@pytest.mark.parametrize(
    ("name", "dtype", "kv_dtype", "provider", "count", "compared"),
    [
        *((*case, SOME, FEW) for case in CASES),
        *(
            pytest.param(*case, FEW, FEW, marks=() if in_make_test(case) else pytest.mark.slow)
            for case in FEW_CASES
        ),
        *(
            pytest.param(*case, *2 * [NUM_SEQUENCES], marks=pytest.mark.slow)
            for case in CASES + FEW_CASES
            if case[3] == "cpu"
        ),
    ],
)
def test_many_at_once_equal_one_at_a_time(
    name: str,
    dtype: str,
    kv_dtype: str,
    provider: OpsProvider,
    count: int,
    compared: int,
    tmp_path: Path,
) -> None:
    make_tiny(name, seed=1, folder=tmp_path)
    ops = load_ops(provider)
    decoder = load_decoder(tmp_path, MAX_POSITIONS, ops, DTYPES[dtype])

    def model(block_size: int, seed: int) -> PagedModel:
        return PagedModel(
            decoder,
            ops,
            block_size=block_size,
            num_blocks=count * 6 * 32 // block_size,
            seed=seed,
            dtype=DTYPES[kv_dtype],
        )

    asked = prompts(2, count)
    together = model(block_size=16, seed=1).generate(asked, NUM_TOKENS)
    alone = model(block_size=8, seed=3)
    case = f"{name} {dtype} {kv_dtype} {provider}"
    for number in sample(asked, compared, case):
        prompt, expected = asked[number], together[number]
        sequence = Sequence(list(prompt))
        while len(sequence.tokens) < len(prompt) + NUM_TOKENS:
            (row,) = alone.step([(sequence, sequence.waiting)])  # a prompt in one piece
            sequence.tokens.append(int(row.argmax()))
        assert sequence.tokens == expected.tokens
        assert torch.equal(torch.cat(sequence.logits), torch.cat(expected.logits))
        alone.release([sequence])
