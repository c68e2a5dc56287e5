"""Kernels of the 1B and 8B models' shapes against a GPU's limits; for `gpu_bars`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from gpu_timing import Card, Row, copies, host_seconds, row, seconds
from msgspec import structs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from quire.core.layers import RouteSpec
from quire.core.quantized import E2M1, QuantizedWeight
from quire.core.sampling_params import SamplingParams
from quire.ops.metadata import AttentionMetadata, AttentionRules, DeltaRules, KVCache, StateSlots
from quire.ops.sample_row import SampleRow
from quire.ops.torch_ops.arrays import array
from quire.ops.torch_ops.moe import route as plain_route
from quire.ops.triton.provider import TritonOps


def products(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Products at a model's shapes: one row, a batch, a prompt; dense, int8 and int4 weights."""
    shapes = {"1B": (8192, 2048), "8B": (28672, 4096)} if card.real else {"tiny": (64, 64)}
    rng = np.random.default_rng(0)
    for name, (n, k) in shapes.items():
        dense = torch.randn(n, k).to(torch.bfloat16)
        codes = rng.integers(0, 16, (n, k), np.uint8)
        scale = rng.uniform(0.01, 0.02, (n, k // 32)).astype(np.float16).astype(np.float32)
        whole, by_row = rng.integers(-127, 128, (n, k), np.int8), scale[:, :1].copy()
        floats = whole.astype(ml_dtypes.float8_e4m3fn)
        weights: dict[str, Any] = {
            "bf16": array(dense),
            "int4": QuantizedWeight(codes, 4, scale, 32, zero=np.full_like(scale, 8)),
            "mxfp4": QuantizedWeight(codes, 4, scale, 32, codebook=np.array(E2M1, np.float32)),
            "int8": QuantizedWeight(whole, 8, by_row, k),
            "fp8": QuantizedWeight(floats, 8, by_row, k, float_activations=True),
            "fp8_w8a8": QuantizedWeight(floats, 8, by_row, k),
        }
        for form, weight in weights.items():
            one = ops.pack_linear(weight)
            packed = [one] + [ops.pack_linear(weight) for _ in range(copies(card, one.nbytes) - 1)]
            for rows in (1, 16, 256, 2048) if card.real else (1, 3):
                x = torch.randn(rows, k, device=card.device).to(torch.bfloat16)
                some = packed if rows <= 256 else packed[:1]
                times = seconds(card.device, [partial(ops.linear, x, each) for each in some])
                nbytes = one.nbytes + 2 * rows * (n + k)
                what = f"linear {name} {form} {n}x{k} rows {rows}"
                found = row(card, what, times, nbytes, 2 * rows * n * k)
                if form == "bf16":
                    theirs = [partial(torch.mm, x, each.weight.t()) for each in some]
                    found["cublas_seconds"] = statistics.median(seconds(card.device, theirs))
                yield found


def attention(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Decode and prefill at 8B's heads."""
    heads, kv_heads, width, block = (32, 8, 128, 16) if card.real else (4, 2, 16, 16)
    cases = [(1, 8192, 1), (64, 2048, 1), (1, 4096, 4096)] if card.real else [(2, 32, 1)]
    for sequences, length, new in cases:
        blocks = sequences * length // block
        shape = (blocks, kv_heads, block, width)
        k, v = (torch.randn(shape, device=card.device).to(torch.bfloat16) for _ in range(2))
        q = torch.randn(sequences * new, heads, width, device=card.device).to(torch.bfloat16)
        meta = decoding(card, sequences, length, block, new)
        cache = KVCache(k, v)
        times = seconds(
            card.device, [partial(ops.paged_attention, q, cache, meta, AttentionRules(width**-0.5))]
        )
        nbytes = k.nbytes + v.nbytes + 2 * q.nbytes
        flops = 4 * heads * width * sequences * new * (length - new // 2)
        found = row(card, f"attention {sequences} x {length}, {new} new", times, nbytes, flops)
        yield found | ({"flash_seconds": flash_seconds(q, k, v, sequences)} if card.real else {})


def flash_seconds(q: Tensor, k: Tensor, v: Tensor, sequences: int) -> float:
    """Return the time of torch's flash attention, whose keys lie in one piece."""
    rows = q.unflatten(0, (sequences, -1)).transpose(1, 2)
    keys, values = (
        part.unflatten(0, (sequences, -1)).transpose(1, 2).flatten(2, 3).contiguous()
        for part in (k, v)
    )
    work = partial(
        scaled_dot_product_attention, rows, keys, values, is_causal=rows.shape[2] > 1,
        enable_gqa=True,
    )  # fmt: skip
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return statistics.median(seconds(q.device, [work]))


def latents(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Decode of latent attention at DeepSeek V3's heads."""
    heads, rope, latent, block = (128, 64, 512, 16) if card.real else (4, 8, 24, 16)
    for sequences, length in [(1, 8192), (64, 2048)] if card.real else [(2, 32)]:
        blocks = sequences * length // block
        shape = (blocks, 1, block, rope + latent)
        cache = KVCache[Tensor](torch.randn(shape, device=card.device).to(torch.bfloat16), None)
        q, turned = (
            torch.randn(sequences, heads, n, device=card.device).to(torch.bfloat16)
            for n in (latent, rope)
        )
        meta = decoding(card, sequences, length, block)
        work = partial(ops.latent_attention, q, turned, cache, meta, 0.1)
        flops = 2 * heads * (rope + 2 * latent) * sequences * length
        what = f"latent attention {sequences} x {length}"
        yield row(card, what, seconds(card.device, [work]), cache.k.nbytes, flops)


def recurrent(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Decode and prefill of the gated delta rule at Qwen3-Next's heads."""
    keys, heads, dim = (16, 32, 128) if card.real else (1, 2, 16)
    for sequences, new in [(1, 1), (256, 1), (1, 2048)] if card.real else [(2, 1)]:
        tokens = sequences * new
        slots = StateSlots(np.arange(sequences, dtype=np.int32), np.full(tokens, -1, np.int64))
        slots.state_to[new - 1 :: new] = np.arange(sequences, 2 * sequences)
        meta = structs.replace(decoding(card, sequences, new, 16, new), states=slots)
        state = torch.zeros(2 * sequences, heads, dim, dim, device=card.device)
        qkv = torch.randn(tokens, (2 * keys + heads) * dim, device=card.device).to(torch.bfloat16)
        gates = torch.randn(tokens, 2 * heads, device=card.device).to(torch.bfloat16)
        rate = torch.ones(heads, device=card.device)
        rules = DeltaRules(rate, rate, keys, 0, heads)
        work = partial(ops.gated_delta_rule, qkv, gates, gates, rules, state, meta)
        what = f"gated delta rule {sequences} x {new}"
        yield row(card, what, seconds(card.device, [work]), state.nbytes)


def sampling(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Draws from a large vocabulary, and how many of them differ alone."""
    rows, vocab = (256, 151_936) if card.real else (2, 300)
    logits = torch.randn(rows, vocab, device=card.device)
    for fields in ({}, {"top_k": 40}, {"top_p": 0.9}):
        params = SamplingParams(temperature=0.8, **fields)
        asked = [SampleRow(i, params, i * 0x9E3779B97F4A7C15 % 2**64) for i in range(rows)]
        times = host_seconds(card.device, partial(ops.sample, logits, asked))
        yield row(card, f"sample {rows} x {vocab} {fields}", times, logits.nbytes)
        together = ops.sample(logits, asked)
        alone = [ops.sample(logits, [one])[0] for one in asked]
        differing = sum(a != b for a, b in zip(together, alone, strict=True))
        what = f"draws of {rows} that differ alone {fields}"
        yield {"what": what, "card": card.name, "count": differing}


def decoding(
    card: Card, sequences: int, length: int, block: int, new: int = 1
) -> AttentionMetadata[Tensor]:
    """Return the metadata of sequences of one length, of which the last tokens are new."""
    blocks = -(-length // block)
    tables = torch.arange(sequences * blocks, dtype=torch.int32, device=card.device)
    return AttentionMetadata(
        query_start_loc=np.arange(0, sequences * new + 1, new, dtype=np.int32),
        seq_lens=np.full(sequences, length, np.int32),
        block_tables=tables.view(sequences, -1),
        slot_mapping=torch.zeros(sequences * new, dtype=torch.int64, device=card.device),
        num_seqs=sequences,
        block_size=block,
    )


def experts(card: Card, ops: TritonOps) -> Iterator[Row]:
    """The experts of Qwen3-30B-A3B: their choice, here and by torch, and their products."""
    count, top_k, hidden, width = (128, 8, 2048, 768) if card.real else (8, 2, 32, 16)
    first = torch.randn(count * 2 * width, hidden).to(torch.bfloat16)
    second = torch.randn(count * hidden, width).to(torch.bfloat16)
    up = ops.pack_linear(array(first), epilogue="silu_mul", experts=count)
    down = ops.pack_linear(array(second), experts=count)
    for rows in (1, 16, 256, 2048) if card.real else (1, 3):
        logits = torch.randn(rows, count, device=card.device)
        spec = RouteSpec(top_k)
        times = seconds(card.device, [partial(ops.route, logits, None, spec)])
        found = row(card, f"route {rows}", times, logits.nbytes)
        theirs = seconds(card.device, [partial(plain_route, logits, None, spec)])
        yield found | {"torch_seconds": statistics.median(theirs)}
        x = torch.randn(rows, hidden, device=card.device).to(torch.bfloat16)
        chosen, weights = ops.route(logits, None, spec)
        read = len(chosen.unique()) * (first.nbytes + second.nbytes) // count
        work = partial(ops.moe, x, chosen, weights, up, down)
        flops = 6 * rows * top_k * hidden * width
        yield row(card, f"experts {rows}", seconds(card.device, [work]), read, flops)


def same_bits(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Count rows whose bits differ between a batch, a small one and alone: in tiles of 128, 64, 32
    and 16 rows."""
    n, k, rows = (4096, 4096, 256) if card.real else (32, 64, 3)
    x = torch.randn(rows, k, device=card.device).to(torch.bfloat16)
    codes, scale = (
        torch.randint(-127, 128, (n, k)).to(torch.int8),
        np.full((n, 1), 0.01, np.float32),
    )
    weights: dict[str, Any] = {
        "bf16": array(torch.randn(n, k).to(torch.bfloat16)),
        "fp8_w8a8": QuantizedWeight(array(codes).astype(ml_dtypes.float8_e4m3fn), 8, scale, k),
        "int8": QuantizedWeight(array(codes), 8, scale, k),
    }
    for form, weight in weights.items():
        packed = ops.pack_linear(weight)
        together = ops.linear(x, packed)
        differing = sum(
            not torch.equal(ops.linear(x[first : first + some], packed)[0], together[first])
            for some in (1, 32, 64)
            for first in range(rows)
        )
        what = f"rows of {rows} that differ alone, {form}"
        yield {"what": what, "card": card.name, "count": differing}
