"""Recurrent sub-layers, whose memory of a sequence is a state of fixed size."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.layers import DeltaConfig, Mamba2Config
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.ops.array import Array
from quire.ops.interface import ConvKind, Ops
from quire.ops.metadata import LayerStates
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The products before and behind a recurrent layer, and the convolution between them.

    Attributes:
        conv: float32 [width, channels]; conv_bias: float32 [channels].
    """

    mixes = True
    inner: Linear
    conv: Array
    conv_bias: Array | None
    out: Linear

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Compute the last product, [T, inner] → [T, hidden]."""
        return self.out.forward(ops, x, adapter)

    def convolved(
        self,
        ops: Ops,
        parts: Array,
        cache: LayerStates,
        tokens: Tokens,
        kind: ConvKind,
        first: int = 0,
    ) -> Array:
        """Return the convolution of the columns of `parts` from `first` on."""
        return ops.causal_conv1d(
            parts, self.conv, self.conv_bias, cache.conv, tokens.meta, kind, first
        )


class ShortConv(Recurrent):
    """out(c · conv(b · v)), with b, c and v from `inner` (see `ShortConvConfig`)."""

    __slots__ = ()

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, channels]."""
        parts = self.inner.forward(ops, x, tokens.adapter)
        return self.convolved(ops, parts, cache, tokens, "gated")


@dataclass(frozen=True, slots=True)
class DeltaRule(Recurrent):
    """A gated delta rule (see `DeltaConfig`). `inner` makes q, k, v, a gate, b and a.

    Attributes:
        rate, bias: of each head of v, as `Ops.gated_delta_rule` takes them.
        gain, eps: of the norm of each head of the result.
    """

    config: DeltaConfig
    rate: Array
    bias: Array
    gain: Array
    eps: float

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, heads · value_dim]."""
        config = self.config
        parts = self.inner.forward(ops, x, tokens.adapter)
        qkv = self.convolved(ops, parts, cache, tokens, "silu")
        gate = config.channels
        beta = gate + config.values
        decay = beta + config.value_heads
        y = ops.gated_delta_rule(
            qkv, parts, parts, self.rate, self.bias, cache.matrix, tokens.meta, config.key_heads,
            decay, beta,
        )  # fmt: skip
        return ops.gated_norm(y, parts, self.gain, self.eps, "silu", gate)


@dataclass(frozen=True, slots=True)
class ChannelDeltaRule(DeltaRule):
    """Kimi Delta Attention: each row of a state has its own decay. `inner` makes q, k, v and b.

    Attributes:
        decay, gate: the products that make a, and the gate, one behind the other.
    """

    decay: Sequence[Linear]
    gate: Sequence[Linear]

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, heads · value_dim]."""
        config, decays, gate = self.config, x, x
        parts = self.inner.forward(ops, x, tokens.adapter)
        qkv = self.convolved(ops, parts, cache, tokens, "silu")
        for product in self.decay:
            decays = product.forward(ops, decays, tokens.adapter)
        y = ops.gated_delta_rule(
            qkv, decays, parts, self.rate, self.bias, cache.matrix, tokens.meta, config.key_heads,
            beta_first=config.channels,
        )  # fmt: skip
        for product in self.gate:
            gate = product.forward(ops, gate, tokens.adapter)
        return ops.gated_norm(y, gate, self.gain, self.eps, "sigmoid")


@dataclass(frozen=True, slots=True)
class Mamba2(Recurrent):
    """A state space (see `Mamba2Config`). `inner` makes a gate, x, B, C and dt.

    Attributes:
        rate, bias, skip: of each head, as `Ops.mamba2_scan` takes them.
        gain, eps: of the norm of the result, as `Ops.gated_norm` takes them.
    """

    config: Mamba2Config
    rate: Array
    bias: Array
    skip: Array
    gain: Array | None
    eps: float

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, heads · head_dim]."""
        config = self.config
        parts = self.inner.forward(ops, x, tokens.adapter)
        xbc = self.convolved(ops, parts, cache, tokens, "silu", config.inner)
        y = ops.mamba2_scan(
            xbc, parts, self.rate, self.skip, self.bias, cache.matrix, tokens.meta, config.groups,
            config.inner + config.channels, config.limits,
        )  # fmt: skip
        return ops.gated_norm(y, parts, self.gain, self.eps, "silu", norm_first=config.norm_first)
