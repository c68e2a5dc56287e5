"""Places beyond 2^31 elements: caches and weights of large cards."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from msgspec import structs
from triton.runtime import interpreter

from quire.ops.metadata import AttentionRules, Heads, KVCache
from quire.ops.triton import attention, latent, linear
from quire.ops.triton.weights import CodedWeight
from tests.triton.test_attention import metadata, short_segments

FAR = 2**31


def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory until they are written, as numpy's do and torch's do not."""
    nbytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(nbytes, np.uint8)).view(dtype).view(shape)


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter copies each tensor back onto itself, which would touch all of it."""
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)


def caches(width: int, heads: int, *, values: bool) -> list[KVCache[torch.Tensor]]:
    """Return a small int8 cache and one whose last blocks lie beyond FAR."""
    found = []
    for blocks in (40, FAR // (heads * 16 * width) + 40):
        shape = blocks, heads, 16
        parts = [zeros(*shape, width, dtype=torch.int8) for _ in range(1 + values)]
        scales = [zeros(*shape, dtype=torch.bfloat16) for _ in parts]
        pair = (parts[0], parts[1] if values else None)
        found.append(KVCache(*pair, scales[0], scales[1] if values else None))
    return found


def test_a_cache_of_more_than_two_billion_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    short_segments(monkeypatch)
    seed, results = torch.Generator().manual_seed(1), []
    qkv = torch.randn(5, 8 * 64, generator=seed)
    for cache in caches(64, 2, values=True):
        meta = metadata([40, 2], [3, 2], 16)
        meta = structs.replace(
            meta, block_tables=meta.block_tables + len(cache.k) - 40,
            slot_mapping=meta.slot_mapping + 16 * (len(cache.k) - 40),
        )  # fmt: skip
        q = attention.rope_kv_write(
            qkv, torch.arange(5), torch.randn(9, 32, generator=seed.manual_seed(2)), cache,
            meta.slot_mapping, Heads(4, 2, 64),
        )  # fmt: skip
        results.append(attention.paged_attention(q, cache, meta, AttentionRules(0.1)))
        assert cache.k[-40:].any()
    assert torch.equal(*results)


def test_a_cache_of_more_than_two_billion_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    short_segments(monkeypatch)
    seed, results = torch.Generator().manual_seed(1), []
    q, kv = torch.randn(3, 4 * 24, generator=seed), torch.randn(3, 40, generator=seed)
    for cache in caches(40, 1, values=False):
        meta, first = metadata([20], [3], 16), len(cache.k) - 40
        slots, tables = meta.slot_mapping + 16 * first, meta.block_tables + first
        turned = latent.latent_kv_write(
            q, kv, torch.arange(3), torch.randn(9, 8, generator=seed.manual_seed(2)),
            torch.ones(32), 1e-6, cache, slots, 4,
        )  # fmt: skip
        x = torch.randn(3, 4, 32, generator=seed.manual_seed(3))
        meta = structs.replace(meta, block_tables=tables, slot_mapping=slots)
        results.append(latent.latent_attention(x, turned, cache, meta, 0.1))
        assert cache.k[-40:].any()
    assert torch.equal(*results)


def test_the_last_of_many_experts() -> None:
    width, columns, size = 256, 64, 16
    seed, results = torch.Generator().manual_seed(1), []
    own = torch.randint(-9, 9, (columns, width), dtype=torch.int8, generator=seed)
    x = torch.randn(5, width, generator=seed)
    for count in (2, FAR // (width * columns) + 2):
        codes = zeros(count * columns, width, dtype=torch.int8)
        codes[-columns:] = own
        scale = zeros(1, len(codes), dtype=torch.float16)
        scale[:, -columns:] = 0.5
        weight = CodedWeight(
            codes, width, False, "int8", scale, width, None, None, None, "none", count,
            torch.float32,
        )  # fmt: skip
        rows = torch.full((size,), -1, dtype=torch.int32)
        rows[:5] = torch.arange(5)
        expert = torch.tensor([count - 1], dtype=torch.int32)
        grouping = linear.Grouping(size, rows, expert, 1, 5)
        results.append(linear.product(x, weight, torch.float32, grouping))
    assert results[0].any()
    assert torch.equal(*results)
