"""Replayed from a plan, a model gives the bits that its ops give when called one by one."""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path

import numpy as np
import pytest
import torch

from quire.core.config import SchedulerConfig
from quire.ops.interface import Ops
from quire.ops.providers import load_ops
from quire.runner.inputs import StepInputs
from quire.runner.kv_tensors import allocate_kv_caches, in_layer_order
from quire.runner.model import EagerModel, Model, PlannedModel
from tests.arrays import numpy_dtype
from tests.golden.harness import load_decoder, make_metadata
from tests.golden.tiny_models import KINDS, MAX_POSITIONS, TINY_MODELS, VOCAB_SIZE, make_tiny
from tests.native import arrays

SEED = int(os.environ.get("QUIRE_TEST_SEED", secrets.randbits(32)))
MAX_TOKENS = 96
LIMITS = SchedulerConfig(MAX_POSITIONS, max_num_seqs=16, max_num_batched_tokens=MAX_TOKENS)
BLOCKS = 200


class Pair:
    """The same steps through both models, each with a cache of its own, and their bits compared."""

    def __init__(
        self,
        folder: Path,
        ops: Ops,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        block_size: int,
    ) -> None:
        decoder = load_decoder(folder, MAX_POSITIONS, ops, dtype)
        self.block_size = block_size
        self.caches = [
            in_layer_order(
                decoder.config,
                allocate_kv_caches(ops, decoder.config, BLOCKS, block_size, numpy_dtype(kv_dtype)),
            )
            for _ in range(2)
        ]
        self.eager: Model = EagerModel(decoder, ops, self.caches[0])
        self.planned = PlannedModel(decoder, ops, self.caches[1], block_size, LIMITS)

    def check_step(
        self, batch: list[tuple[list[int], int, list[int]]], draw: random.Random
    ) -> None:
        """Compute the last `count` of the tokens of each (tokens, count, block table)."""
        counts = [count for _, count, _ in batch]
        lens = [len(tokens) for tokens, _, _ in batch]
        ids = [token for tokens, count, _ in batch for token in tokens[-count:]]
        where = [i for n, count in zip(lens, counts, strict=True) for i in range(n - count, n)]
        meta = arrays(
            make_metadata(counts, lens, [table for _, _, table in batch], self.block_size)
        )
        ends = (np.cumsum(counts) - 1).tolist()
        wanted = draw.choice([ends, [], draw.sample(ends, len(ends) // 2), list(range(len(ids)))])
        rows = np.array(wanted, np.int64)
        inputs = StepInputs(np.array(ids), np.array(where), meta, rows, np.arange(len(batch)))
        eager, planned = (m.forward(inputs, rows) for m in (self.eager, self.planned))
        assert len(eager) == len(rows)
        assert np.array_equal(eager, planned)
        for first in range(0, max(len(rows), 1), 16):
            part, same = (hidden[first : first + 16] for hidden in (eager, planned))
            assert np.array_equal(self.eager.logits(part), self.planned.logits(same))


def check_random_steps(pair: Pair, draw: random.Random) -> None:
    """Ragged batches: new prompts, chunks of prompts and single tokens, up to the limits."""
    blocks = list(range(1, BLOCKS))  # block 0 is where the plan was recorded
    draw.shuffle(blocks)
    sequences: list[tuple[list[int], list[int]]] = []
    for _ in range(12):
        batch, left = [], MAX_TOKENS
        while len(sequences) < 12 and draw.random() < 0.7:
            sequences.append(([], []))
        for tokens, table in draw.sample(sequences, min(len(sequences), 16)):
            count = min(draw.choice([1, 1, 1, 3, 17, 64]), left)
            if count == 0 or len(tokens) + count > 12 * pair.block_size:
                continue
            left -= count
            tokens += [draw.randrange(VOCAB_SIZE) for _ in range(count)]
            while len(table) * pair.block_size < len(tokens):
                table.append(blocks.pop())
            batch.append((list(tokens), count, list(table)))
        if batch:
            pair.check_step(batch, draw)


FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
INT8, INT4 = torch.int8, torch.uint8


FORMS = [
    (FLOAT32, FLOAT32, None),
    (BFLOAT16, BFLOAT16, None),
    (BFLOAT16, INT8, "int8"),
    (FLOAT16, FLOAT16, None),
    (BFLOAT16, BFLOAT16, "int4_g32"),
    (BFLOAT16, INT8, None),
    (FLOAT32, FLOAT32, "int8"),
]
"""Dtypes of activations and of the cache, and a quantization: models take turns."""
CASES = [
    *((name, *FORMS[turn % len(FORMS)]) for turn, name in enumerate(TINY_MODELS)),
    ("qwen3", BFLOAT16, torch.float8_e4m3fn, None),
    ("gemma2", FLOAT32, INT4, "int8"),
    ("gemma4", BFLOAT16, INT4, "int8"),
    ("olmo2", BFLOAT16, INT4, "int8"),
    ("minicpm3", BFLOAT16, torch.float8_e4m3fn, None),
]


@pytest.mark.parametrize(
    ("name", "dtype", "kv_dtype", "quantization"),
    [case if case[0] in KINDS else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_plan_and_eager_have_the_same_bits(
    name: str,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    quantization: str | None,
    tmp_path: Path,
) -> None:
    print(f"QUIRE_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    make_tiny(name, seed=draw.randrange(100), folder=tmp_path)
    ops = load_ops("cpu", num_threads=draw.choice([1, 2]), quantization=quantization)
    pair = Pair(tmp_path, ops, dtype, kv_dtype, draw.choice([8, 16]))
    check_random_steps(pair, draw)
