"""Self-attention over the paged KV cache."""

from __future__ import annotations

from dataclasses import KW_ONLY

from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.norm import GatheredNorm, Norm
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Multi-head attention with grouped queries.

    `qkv` computes q, k and v at once: rows [heads · D, kv_heads · D, kv_heads · D] of its
    weight. With `kv_heads` 0 it computes q alone, and the cache is another layer's. `q_norm` and
    `k_norm` are the weights of an RMSNorm before the rotation, of each head [head_dim] (Qwen3) or
    of all [heads · D] (OLMo 2); `v_norm` is that of each head of v, and `rotated_q_norm` that of a
    norm of each head of q behind the rotation. `cos_sin` is the rotation's table (see
    `layers.rotary`), and `q_cos_sin` that of q, if it is another: then whole heads are rotated.
    The q, k and v that `joined` computes of
    `Tokens.joined` are added to those of `qkv`. `sub_norm` stands before `out` (BitNet). With
    `gated`, the last rows of `qkv` are a gate [heads · D], whose sigmoid is a factor of the result.
    """

    mixes = True
    qkv: Linear
    out: Linear
    _: KW_ONLY
    heads: int
    kv_heads: int
    head_dim: int
    rules: AttentionRules
    cos_sin: Array | None = None
    q_cos_sin: Array | None = None
    rotated_q_norm: Array | None = None
    q_norm: Array | None = None
    k_norm: Array | None = None
    v_norm: Array | None = None
    eps: float = 0.0
    joined: Linear | None = None
    sub_norm: Norm | GatheredNorm | None = None
    gated: bool = False

    def mix(self, ops: Ops, x: Array, cache: KVCache, tokens: Tokens) -> Array:
        """Return [T, heads · D] for [T, hidden]; store keys and values in `cache`."""
        q, qkv = self.enter(ops, x, cache, tokens)
        flat = self.attend(ops, q, cache, tokens)
        if self.gated:
            gate = (self.heads + 2 * self.kv_heads) * self.head_dim
            flat = ops.gated_norm(flat, qkv, None, self.eps, "sigmoid", gate)
        return flat

    def enter(self, ops: Ops, x: Array, cache: KVCache, tokens: Tokens) -> tuple[Array, Array]:
        """Store keys and values in `cache`; return q and what `qkv` computes."""
        meta = self._seen(tokens)[0]
        cos_sin = self.cos_sin if tokens.rotations is None else tokens.rotations
        qkv = self.qkv.forward(ops, x, tokens.adapter)
        if self.joined is not None and tokens.joined is not None:
            qkv = ops.add(self.joined.forward(ops, tokens.joined), qkv)
        if self.q_cos_sin is not None:
            q = self._place(ops, qkv, self.q_cos_sin, cache, tokens, meta)
            self._place(ops, qkv, cos_sin, cache, tokens, meta)  # overwrites the keys
        else:
            q = self._place(ops, qkv, cos_sin, cache, tokens, meta)
        if self.rotated_q_norm is not None:
            q = ops.rms_norm(q, self.rotated_q_norm, self.eps)
        return q, qkv

    def attend(self, ops: Ops, q: Array, cache: KVCache, tokens: Tokens) -> Array:
        """Return [T, heads · D] for the queries of `enter`."""
        mixed = ops.paged_attention(q, cache, *self._seen(tokens))
        flat: Array = mixed.reshape(len(mixed), self.heads * self.head_dim)
        return flat

    def _seen(self, tokens: Tokens) -> tuple[AttentionMetadata, AttentionRules]:
        """Return the sequences that are attended to, and the rules in them."""
        if tokens.windows is not None and self.rules.window is not None:
            return tokens.windows, self.rules._replace(window=None)
        return tokens.meta, self.rules

    def _place(
        self,
        ops: Ops,
        qkv: Array,
        cos_sin: Array | None,
        cache: KVCache,
        tokens: Tokens,
        meta: AttentionMetadata,
    ) -> Array:
        """Rotate q and k by `cos_sin`, store k and v; return q."""
        return ops.rope_kv_write(
            qkv, tokens.positions, cos_sin, self.q_norm, self.k_norm, self.eps, cache,
            meta.slot_mapping, self.heads, self.kv_heads, self.head_dim,
            self.v_norm,
        )  # fmt: skip

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, heads · D]."""
        if self.sub_norm is not None:
            x = self.sub_norm.forward(ops, x)
        return self.out.forward(ops, x, adapter)
