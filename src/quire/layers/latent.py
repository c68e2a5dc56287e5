"""Self-attention over latents in the paged KV cache."""

from __future__ import annotations

from dataclasses import KW_ONLY

from quire.core.layers import LatentConfig
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import GatedNorm, KVCache
from quire.ops.weights import LinearWeight
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """Multi-head latent attention, whose key and value matrices are applied to queries and results.

    So attention reads latents as they are cached, in every step: a token's result has the same bits
    in a prompt of any chunking and in decoding.

    Attributes:
        q: heads of queries, [rope | rest] each; reads the norm of `q_down`'s result, if there is
            one, else the hidden state.
        kv: [rope | latent]; `gain` and `eps` are those of the latent's norm.
        key, value: of each head, [latent, rest] and [value, latent], as `Ops.head_linear` takes
            them.
        cos_sin: the rotation's table (see `layers.rotary`); None without RoPE.
        growth: factors of queries by position, [positions, 1] (Mistral 4).
    """

    mixes = True
    q: Linear
    kv: Linear
    out: Linear
    _: KW_ONLY
    q_down: Linear | None
    q_gain: Array | None
    gain: Array
    eps: float
    key: LinearWeight
    value: LinearWeight
    latent: LatentConfig
    heads: int
    scale: float
    cos_sin: Array | None
    growth: Array | None = None

    def mix(self, ops: Ops, x: Array, cache: KVCache, tokens: Tokens) -> Array:
        """Return [T, heads · value_dim] for [T, hidden]; store latents in `cache`."""
        kv = self.kv.forward(ops, x, tokens.adapter)
        if self.q_down is not None and self.q_gain is not None:
            x = ops.rms_norm(self.q_down.forward(ops, x, tokens.adapter), self.q_gain, self.eps)
        q = ops.latent_kv_write(
            self.q.forward(ops, x, tokens.adapter), kv, tokens.positions, self.cos_sin, self.gain,
            self.eps, cache, tokens.meta.slot_mapping, self.heads,
        )  # fmt: skip
        if self.growth is not None:
            rows, shape = q.reshape(len(q), -1), q.shape
            factors = ops.embedding(tokens.positions, self.growth)
            rules: GatedNorm[Array] = GatedNorm(None, 0.0, "factor", each=rows.shape[1])
            q = ops.gated_norm(rows, factors, rules).reshape(shape)
        absorbed = ops.head_linear(q, self.key, self.latent.rope_dim)
        mixed = ops.latent_attention(absorbed, q, cache, tokens.meta, self.scale)
        values = ops.head_linear(mixed, self.value)
        flat: Array = values.reshape(len(values), self.heads * self.latent.value_dim)
        return flat

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, heads · value_dim]."""
        return self.out.forward(ops, x, adapter)
