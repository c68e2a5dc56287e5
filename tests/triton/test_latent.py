"""Latent attention: against the reference, and the same bits however it is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.torch_ops import latent as plain
from quire.ops.triton import attention, latent
from tests.triton.test_attention import BLOCKS, metadata

ROPE, LATENT = 8, 24
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


def empty_cache(kind: str, block_size: int) -> KVCache[Tensor]:
    shape = (BLOCKS, 1, block_size, ROPE + LATENT)
    scale = torch.zeros(shape[:3], dtype=torch.bfloat16) if kind == "int8" else None
    return KVCache(torch.zeros(shape, dtype=DTYPES[kind]), None, scale)


def written(
    kind: str, meta: AttentionMetadata[Tensor], heads: int, op: object
) -> tuple[Tensor, KVCache[Tensor]]:
    """Return turned queries of all tokens and the cache that `op` fills."""
    lengths = meta.seq_lens.tolist()
    everything = metadata(lengths, lengths, meta.block_size)
    generator = torch.Generator().manual_seed(3)
    dtype = torch.float16 if kind == "float16" else torch.float32
    q, kv = (
        torch.randn(sum(lengths), n, generator=generator).to(dtype)
        for n in (heads * 20, ROPE + LATENT)
    )
    gain = torch.rand(LATENT, generator=generator).to(dtype)
    angles = torch.rand(64, ROPE // 2, generator=generator)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    cache = empty_cache(kind, meta.block_size)
    positions = torch.cat([torch.arange(n) for n in lengths])
    slots = everything.slot_mapping
    assert callable(op)
    return op(q, kv, positions, cos_sin, gain, 1e-6, cache, slots, heads), cache


@pytest.mark.parametrize(
    "kind", ["float32", *(pytest.param(k, marks=pytest.mark.slow) for k in ("float16", "int8"))]
)
def test_it_is_the_reference(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written, and attention over it; the same bits with segments apart."""
    monkeypatch.setattr(attention, "SEGMENT", 32)
    heads, meta = 3, metadata([40, 3], [1, 2], 16)
    found_q, found = written(kind, meta, heads, latent.latent_kv_write)
    q, cache = written(kind, meta, heads, plain.latent_kv_write)
    half = 2.0**-11 if kind == "float16" else 2.0**-22
    assert torch.allclose(found_q.float(), q.float(), rtol=4 * half, atol=4 * half)
    rows, expected = found.k.float(), cache.k.float()
    step = 4 * half
    if cache.k_scale is not None and found.k_scale is not None:
        rows, expected = (
            c.k.float() * s.float()[..., None]
            for c, s in ((found, found.k_scale), (cache, cache.k_scale))
        )
        step = 1.01 / 127
    assert ((rows - expected).abs() <= step * expected.abs().amax(-1, keepdim=True)).all()
    assert (rows == expected).float().mean() > 0.9
    generator = torch.Generator().manual_seed(5)
    dtype = q.dtype
    absorbed = torch.randn(3, heads, LATENT, generator=generator).to(dtype)
    rope = q[:3]
    expected = plain.latent_attention(absorbed, rope, cache, meta, 0.15)
    result = latent.latent_attention(absorbed, rope, cache, meta, 0.15)
    # In 16 bits, softmax weights are rounded before they multiply latents of about 1.
    atol = 2e-3 if kind == "float16" else 4e-6
    assert torch.allclose(result, expected, rtol=0, atol=atol)
    monkeypatch.setattr(attention, "processors", lambda device: 0)
    assert torch.equal(latent.latent_attention(absorbed, rope, cache, meta, 0.15), result)


@pytest.mark.slow
def test_chunks_and_neighbours_change_no_bit() -> None:
    heads = 20  # two tiles of heads
    whole = metadata([9, 4], [9, 4], 16)
    q, cache = written("float32", whole, heads, plain.latent_kv_write)
    absorbed = torch.randn(13, heads, LATENT, generator=torch.Generator().manual_seed(7))
    expected = latent.latent_attention(absorbed, q, cache, whole, 0.3)
    for first, last in ((0, 2), (2, 9)):
        chunk = metadata([last], [last - first], 16)
        found = latent.latent_attention(absorbed[first:last], q[first:last], cache, chunk, 0.3)
        assert torch.equal(found, expected[first:last])
