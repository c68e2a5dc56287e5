"""Self-attention over the paged KV cache."""

from __future__ import annotations

from torch import Tensor

from quire.layers.linear import Linear
from quire.layers.norm import RMSNorm
from quire.layers.rotary import RotaryEmbedding
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.table import OpTable


class Attention:
    """Multi-head attention with grouped queries.

    `qkv` computes q, k and v at once: rows [heads · D, kv_heads · D, kv_heads · D] of its
    weight. `q_norm` and `k_norm` normalize each head before the rotation (Qwen3).
    """

    __slots__ = ("head_dim", "heads", "k_norm", "kv_heads", "out", "q_norm", "qkv", "rotary",
                 "scale", "window")  # fmt: skip

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int | None = None,
        rotary: RotaryEmbedding | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        self.qkv = qkv
        self.out = out
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.window = window
        self.scale = head_dim**-0.5
        self.rotary = rotary
        self.q_norm = q_norm
        self.k_norm = k_norm

    def forward(
        self, ops: OpTable, x: Tensor, positions: Tensor, cache: KVCache, meta: AttentionMetadata
    ) -> Tensor:
        """[T, hidden] → [T, hidden]; stores the new keys and values in `cache`."""
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        q, k, v = self.qkv.forward(ops, x).split((q_width, kv_width, kv_width), dim=-1)
        q = q.unflatten(-1, (self.heads, self.head_dim))
        k = k.unflatten(-1, (self.kv_heads, self.head_dim))
        v = v.unflatten(-1, (self.kv_heads, self.head_dim))
        if self.q_norm is not None:
            q = self.q_norm.forward(ops, q)
        if self.k_norm is not None:
            k = self.k_norm.forward(ops, k)
        if self.rotary is not None:
            q, k = self.rotary.forward(ops, q, k, positions)
        ops.write_kv(k, v, cache, meta.slot_mapping)
        attended = ops.paged_attention(q, cache, meta, self.scale, self.window)
        return self.out.forward(ops, attended.flatten(1))
