"""The tensors behind the paged KV cache."""

from __future__ import annotations

import torch

from quire.core.config import ModelConfig
from quire.ops.memory import empty
from quire.ops.metadata import KVCache


def allocate_kv_caches(
    model: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype
) -> list[KVCache]:
    """Keys and values of every layer, each [num_blocks, num_kv_heads, block_size, head_dim].

    With dtype int8 there are also their scales, bfloat16 [num_blocks, num_kv_heads, block_size].

    The memory is not written to: the operating system backs it with RAM where a token first lands,
    in huge pages (`ops.memory`), of which each holds one tensor's part of many blocks. A first
    short request so takes 2 MiB in each of these tensors. Scattered blocks of one layer share few
    pages, so that attention need not wait for their addresses. What a block holds before its first
    token means nothing, and is never read.
    """
    shape = (num_blocks, model.num_key_value_heads, block_size, model.head_dim)
    caches = []
    for _ in range(model.num_hidden_layers):
        cache = KVCache(empty(shape, dtype), empty(shape, dtype))
        if dtype == torch.int8:
            scales = (empty(shape[:3], torch.bfloat16) for _ in range(2))
            cache = KVCache(cache.k, cache.v, *scales)
        caches.append(cache)
    return caches
