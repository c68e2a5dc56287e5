"""The tensors behind the paged KV cache."""

from __future__ import annotations

import torch

from quire.core.config import ModelConfig
from quire.ops.metadata import KVCache


def allocate_kv_caches(
    model: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype
) -> list[KVCache]:
    """Keys and values of every layer, each [num_blocks, num_kv_heads, block_size, head_dim].

    With dtype int8 there are also their scales, bfloat16 [num_blocks, num_kv_heads, block_size].

    The memory is not written to: the operating system backs a page with RAM when a token first
    lands in it. What a block holds before that means nothing, and is never read. Huge pages are not
    asked for: decode took 5 to 11 % less on them (Zen 4, one thread), but the first token in
    a page would take 2 MiB of zeros, in each of these tensors.
    """
    shape = (num_blocks, model.num_key_value_heads, block_size, model.head_dim)
    caches = []
    for _ in range(model.num_hidden_layers):
        cache = KVCache(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype))
        if dtype == torch.int8:
            scales = (torch.empty(shape[:3], dtype=torch.bfloat16) for _ in range(2))
            cache = KVCache(cache.k, cache.v, *scales)
        caches.append(cache)
    return caches
