"""Recurrent sub-layers, whose memory of a sequence is a state of fixed size."""

from __future__ import annotations

from collections.abc import Sequence

from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import Convolution, DeltaRules, GatedNorm, LayerStates, ScanRules
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The products before and behind a recurrent layer, and the convolution between them."""

    mixes = True
    inner: Linear
    conv: Convolution[Array]
    out: Linear

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Compute the last product, [T, inner] → [T, hidden]."""
        return self.out.forward(ops, x, adapter)


class ShortConv(Recurrent):
    """out(c · conv(b · v)), with b, c and v from `inner` (see `ShortConvConfig`)."""

    __slots__ = ()

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, channels]."""
        parts = self.inner.forward(ops, x, tokens.adapter)
        return ops.causal_conv1d(parts, self.conv, cache.conv, tokens.meta)


@dataclass(frozen=True, slots=True)
class DeltaRule(Recurrent):
    """A gated delta rule (see `DeltaConfig`). `inner` makes q, k, v, a gate, b and a.

    Attributes:
        norm: of each head of the result.
    """

    rules: DeltaRules[Array]
    norm: GatedNorm[Array]

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, heads · value_dim]."""
        parts = self.inner.forward(ops, x, tokens.adapter)
        qkv = ops.causal_conv1d(parts, self.conv, cache.conv, tokens.meta)
        y = ops.gated_delta_rule(qkv, parts, parts, self.rules, cache.matrix, tokens.meta)
        return ops.gated_norm(y, parts, self.norm)


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
        decays, gate = x, x
        parts = self.inner.forward(ops, x, tokens.adapter)
        qkv = ops.causal_conv1d(parts, self.conv, cache.conv, tokens.meta)
        for product in self.decay:
            decays = product.forward(ops, decays, tokens.adapter)
        y = ops.gated_delta_rule(qkv, decays, parts, self.rules, cache.matrix, tokens.meta)
        for product in self.gate:
            gate = product.forward(ops, gate, tokens.adapter)
        return ops.gated_norm(y, gate, self.norm)


@dataclass(frozen=True, slots=True)
class Mamba2(Recurrent):
    """A state space (see `Mamba2Config`). `inner` makes a gate, x, B, C and dt."""

    rules: ScanRules[Array]
    norm: GatedNorm[Array]

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, heads · head_dim]."""
        parts = self.inner.forward(ops, x, tokens.adapter)
        xbc = ops.causal_conv1d(parts, self.conv, cache.conv, tokens.meta)
        y = ops.mamba2_scan(xbc, parts, self.rules, cache.matrix, tokens.meta)
        return ops.gated_norm(y, parts, self.norm)
