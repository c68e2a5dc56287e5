"""Attention of prompts by flash-attn or FlashInfer, if a user asks for one of them.

Their kernels choose tiles and splits by the whole batch, so bits of a step with a prompt depend on
what is in it. Steps that only decode, and what a package lacks, stay with Quire's kernel.

```
 blocks of the cache  [block, kv head, token, width]
   FlashInfer    reads them where they lie: its layout "HND"
   flash-attn    takes pages of 256 tokens or more, so keys and values are copied in one piece
```
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.config import AttentionPackage
from quire.core.dtypes import HostArray
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.triton import tables

Attend = Callable[
    [Tensor, KVCache[Tensor], AttentionMetadata[Tensor], AttentionRules[Tensor]], Tensor
]
WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation recommends."""
LEAST_ROWS = 16
"""Rows of a sequence that make it a prompt; drafts have fewer."""
COPIED_BYTES = 1 << 28
"""Keys and values that are copied for flash-attn at most; the memory's plan has no place for more.
"""
WIDTHS = (64, 128, 256)
"""Of heads, for which both packages have kernels."""


def prompt_attention(package: AttentionPackage, device: torch.device, own: Attend) -> Attend:
    """Return attention that gives prompts to a package.

    Args:
        own: attention of everything else.
    """
    theirs = FlashInfer(device) if package == "flashinfer" else FlashAttention()

    def paged_attention(
        q: Tensor,
        cache: KVCache[Tensor],
        meta: AttentionMetadata[Tensor],
        rules: AttentionRules[Tensor],
    ) -> Tensor:
        copied = 0 if package == "flashinfer" else keys_bytes(cache, meta)
        there = copied <= COPIED_BYTES and takes(q, cache, meta, rules)
        return (theirs.attend if there else own)(q, cache, meta, rules)

    return paged_attention


def takes(
    q: Tensor,
    cache: KVCache[Tensor],
    meta: AttentionMetadata[Tensor],
    rules: AttentionRules[Tensor],
) -> bool:
    """Return whether a package computes this: a prompt, over a cache of 16-bit numbers."""
    starts = meta.query_start_loc[: meta.num_seqs + 1]
    if int(np.diff(starts).max(initial=0)) < LEAST_ROWS or meta.whole is not None:
        return False
    plain = rules.sinks is None and not rules.chunked and (rules.causal or rules.window is None)
    stored = cache.k.dtype == q.dtype and q.dtype in (torch.float16, torch.bfloat16)
    return plain and stored and q.shape[2] in WIDTHS


def keys_bytes(cache: KVCache[Tensor], meta: AttentionMetadata[Tensor]) -> int:
    """Return the bytes of all keys and values of the step's sequences."""
    token = 2 * cache.k[0, :, 0].numel() * cache.k.itemsize
    return token * int(meta.seq_lens[: meta.num_seqs].sum())


class FlashInfer:
    """FlashInfer's attention over pages. One plan serves all layers of a step that are alike."""

    def __init__(self, device: torch.device) -> None:
        self._package: Any = import_module("flashinfer")
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._planned: dict[tuple[Any, ...], tuple[AttentionMetadata[Tensor], Any]] = {}

    def attend(
        self,
        q: Tensor,
        cache: KVCache[Tensor],
        meta: AttentionMetadata[Tensor],
        rules: AttentionRules[Tensor],
    ) -> Tensor:
        key = (*q.shape[1:], cache.k.shape[1], q.dtype, *rules)
        meta_of, wrapper = self._planned.get(key, (None, None))
        if wrapper is None:
            wrapper = self._package.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND")
        if meta_of is not meta:
            self._plan(wrapper, q, cache, meta, rules)
            self._planned[key] = meta, wrapper
        result: Tensor = wrapper.run(q.contiguous(), (cache.k, cache.v))
        return result

    def _plan(
        self,
        wrapper: Any,
        q: Tensor,
        cache: KVCache[Tensor],
        meta: AttentionMetadata[Tensor],
        rules: AttentionRules[Tensor],
    ) -> None:
        lengths = meta.seq_lens[: meta.num_seqs].astype(np.int32)
        blocks = -(-lengths // meta.block_size)
        row, column = tables.table(meta, q.device, _pages)
        wrapper.plan(
            torch.from_numpy(meta.query_start_loc[: meta.num_seqs + 1].astype(np.int32)),
            torch.from_numpy(np.append(0, np.cumsum(blocks)).astype(np.int32)),
            meta.block_tables[row, column].int(),
            torch.from_numpy(lengths - (blocks - 1) * meta.block_size),
            q.shape[1], cache.k.shape[1], q.shape[2], meta.block_size,
            causal=rules.causal, sm_scale=rules.scale,
            window_left=-1 if rules.window is None else rules.window - 1,
            logits_soft_cap=rules.softcap or 0.0, q_data_type=q.dtype, kv_data_type=q.dtype,
        )  # fmt: skip


class FlashAttention:
    """flash-attn's attention over sequences that lie one after the other."""

    def __init__(self) -> None:
        self._package: Any = import_module("flash_attn")

    def attend(
        self,
        q: Tensor,
        cache: KVCache[Tensor],
        meta: AttentionMetadata[Tensor],
        rules: AttentionRules[Tensor],
    ) -> Tensor:
        starts, ends = tables.table(meta, q.device, _starts)
        row, column, within = tables.table(meta, q.device, _tokens)
        block = meta.block_tables[row, column].long()
        assert cache.v is not None
        lengths = meta.seq_lens[: meta.num_seqs]
        result: Tensor = self._package.flash_attn_varlen_func(
            q.contiguous(), cache.k[block, :, within], cache.v[block, :, within], starts, ends,
            int(np.diff(meta.query_start_loc[: meta.num_seqs + 1]).max()), int(lengths.max()),
            softmax_scale=rules.scale, causal=rules.causal,
            window_size=(-1, -1) if rules.window is None else (rules.window - 1, 0),
            softcap=rules.softcap or 0.0,
        )  # fmt: skip
        return result


def _pages(meta: AttentionMetadata[Tensor]) -> HostArray:
    """Return int64 [2, pages]: row and column in the block tables, sequence by sequence."""
    blocks = -(-meta.seq_lens[: meta.num_seqs].astype(np.int64) // meta.block_size)
    row = np.repeat(np.arange(meta.num_seqs), blocks)
    return np.stack((row, np.arange(len(row)) - np.repeat(np.cumsum(blocks) - blocks, blocks)))


def _tokens(meta: AttentionMetadata[Tensor]) -> HostArray:
    """Return int64 [3, keys]: row and column in the block tables, and place in the block."""
    lengths = meta.seq_lens[: meta.num_seqs].astype(np.int64)
    row = np.repeat(np.arange(meta.num_seqs), lengths)
    position = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.stack((row, position // meta.block_size, position % meta.block_size))


def _starts(meta: AttentionMetadata[Tensor]) -> HostArray:
    """Return int32 [2, sequences + 1]: where each sequence's rows begin, and its keys."""
    lengths = meta.seq_lens[: meta.num_seqs]
    keys = np.append(0, np.cumsum(lengths))
    return np.stack((meta.query_start_loc[: meta.num_seqs + 1], keys)).astype(np.int32)
