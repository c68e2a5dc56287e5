"""Self-attention over the paged KV cache."""

from __future__ import annotations

from dataclasses import KW_ONLY

from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.norm import GatheredNorm, Norm
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, AttentionRules, GatedNorm, Heads, KVCache
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Multi-head attention with grouped queries.

    `qkv` computes q, k and v of all `heads` at once, in this order. Without heads of keys the cache
    is another layer's. Norms stand before the rotation; `rotated_q_norm` is the weight of one of
    each head of q behind it. `cos_sin` is the rotation's table (see `layers.rotary`), and
    `q_cos_sin` that of q, if it is another: then whole heads are rotated. The q, k and v that
    `joined` computes of `Tokens.joined` are added to those of `qkv`. `sub_norm` stands before `out`
    (BitNet). With `gated`, the last rows of `qkv` are a gate as wide as q, whose sigmoid is a
    factor of the result; else `gate` may make one, for each element or for each head.
    """

    mixes = True
    qkv: Linear
    out: Linear
    _: KW_ONLY
    heads: Heads
    rules: AttentionRules
    cos_sin: Array | None = None
    q_cos_sin: Array | None = None
    rotated_q_norm: Array | None = None
    joined: Linear | None = None
    sub_norm: Norm | GatheredNorm | None = None
    gated: bool = False
    gate: Linear | None = None

    def mix(self, ops: Ops, x: Array, cache: KVCache, tokens: Tokens) -> Array:
        """Return [T, heads · D] for [T, hidden]; store keys and values in `cache`."""
        q, qkv = self.enter(ops, x, cache, tokens)
        flat = self.attend(ops, q, cache, tokens)
        if self.gated:
            gate = (self.heads.q + 2 * self.heads.kv) * self.heads.width
            flat = ops.gated_norm(flat, qkv, GatedNorm(None, 0.0, "sigmoid", gate))
        if self.gate is not None:
            factors = self.gate.forward(ops, x, tokens.adapter)
            each = flat.shape[1] // factors.shape[1]
            flat = ops.gated_norm(flat, factors, GatedNorm(None, 0.0, "sigmoid", each=each))
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
            q = ops.rms_norm(q, self.rotated_q_norm, self.heads.eps)
        return q, qkv

    def attend(self, ops: Ops, q: Array, cache: KVCache, tokens: Tokens) -> Array:
        """Return [T, heads · D] for the queries of `enter`."""
        mixed = ops.paged_attention(q, cache, *self._seen(tokens))
        flat: Array = mixed.reshape(len(mixed), self.heads.q * self.heads.width)
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
            qkv, tokens.positions, cos_sin, cache, meta.slot_mapping, self.heads
        )

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, heads · D]."""
        if self.sub_norm is not None:
            x = self.sub_norm.forward(ops, x)
        return self.out.forward(ops, x, adapter)
