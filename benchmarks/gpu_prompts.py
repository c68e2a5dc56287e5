"""What options and fusions gain on a GPU; for `gpu_bars`.

- torch.compile: reference ops of a prompt, plain and compiled, and Triton's.
- flash-attn and FlashInfer: attention of prompts, where they are installed, and Triton's.
- A norm that quantizes its rows for int8 products, and the two kernels that it replaces.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from gpu_timing import Card, Row, host_seconds, row, seconds

from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.torch_ops.arrays import array
from quire.ops.torch_ops.provider import TorchOps
from quire.ops.triton import flash, rows
from quire.ops.triton.provider import TritonOps

Meta = Callable[..., AttentionMetadata[Any]]


def compiled(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Yield a norm and a product with its activation: Triton's, the reference's, and compiled."""
    n, k, count = (28672, 4096, 2048) if card.real else (64, 64, 64)
    weight, gain = torch.randn(n, k).to(torch.bfloat16), torch.ones(k).to(torch.bfloat16)
    x = torch.randn(count, k, device=card.device).to(torch.bfloat16)
    gain = gain.to(card.device)
    for backend in (None, "inductor" if card.real else "eager"):
        plain = TorchOps(ops.device, backend)
        how = "reference" if backend is None else f"compiled by {backend}"
        packed = plain.pack_linear(array(weight), epilogue="silu_mul")
        calls = {
            "linear silu_mul": partial(plain.linear, x, packed),
            "add_rms_norm": partial(plain.add_rms_norm, x, x, gain, 1e-6),
        }
        for name, call in calls.items():
            with torch.inference_mode():
                yield row(card, f"{name} rows {count}, {how}", host_seconds(card.device, call), 0)
    packed = ops.pack_linear(array(weight), epilogue="silu_mul")
    for name, own in {
        "linear silu_mul": partial(ops.linear, x, packed),
        "add_rms_norm": partial(ops.add_rms_norm, x, x, gain, 1e-6),
    }.items():
        yield row(card, f"{name} rows {count}, triton", host_seconds(card.device, own), 0)


def packages(card: Card, ops: TritonOps, decoding: Meta) -> Iterator[Row]:
    """Yield attention of prompts at 8B's heads by each installed package, with Triton's time."""
    heads, kv_heads, width, block = (32, 8, 128, 16) if card.real else (4, 2, 64, 16)
    for sequences, length, new in [(1, 4096, 4096), (8, 2048, 512)] if card.real else [(2, 32, 16)]:
        shape = (sequences * length // block, kv_heads, block, width)
        k, v = (torch.randn(shape, device=card.device).to(torch.bfloat16) for _ in range(2))
        q = torch.randn(sequences * new, heads, width, device=card.device).to(torch.bfloat16)
        meta, cache = decoding(card, sequences, length, block, new), KVCache(k, v)
        given = q, cache, meta, AttentionRules[Any](width**-0.5)
        own = seconds(card.device, [partial(ops.paged_attention, *given)])
        what = f"attention of prompts {sequences} x {length}, {new} new"
        yield row(card, f"{what}, triton", own, 0)
        for name in ("flash_attn", "flashinfer"):
            if find_spec(name) is None:
                yield {"what": f"{what}, {name}", "card": card.name, "error": "not installed"}
                continue
            attend = flash.prompt_attention(name, card.device, ops.paged_attention)
            times = seconds(card.device, [partial(attend, *given)])
            yield row(card, f"{what}, {name}", times, 0) | {
                "triton_seconds": statistics.median(own)
            }


def norms(card: Card) -> Iterator[Row]:
    """Yield norms with and without codes of their rows, and the kernel that makes codes."""
    width = 4096 if card.real else 64
    gain = torch.ones(width, device=card.device).to(torch.bfloat16)
    for count in (1, 64) if card.real else (1,):
        x = torch.randn(count, width, device=card.device).to(torch.bfloat16)
        for name, call in {
            "add_rms_norm": partial(rows.add_rms_norm, x, x, gain, 1e-6),
            "quantize_rows": partial(rows.codes_of, x, torch.int8),
            "both in one": partial(rows.add_rms_norm, x, x, gain, 1e-6, coded=torch.int8),
        }.items():
            yield row(card, f"{name} rows {count}", seconds(card.device, [call]), 0)
