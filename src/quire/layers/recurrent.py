"""Recurrent sub-layers, whose memory of a sequence is a state of fixed size."""

from __future__ import annotations

from quire.core.layers import DeltaConfig, Mamba2Config
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import LayerStates


class Conv:
    """A causal convolution: `weight` [width, channels] and `bias` [channels], float32."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Array, bias: Array | None) -> None:
        self.weight = weight
        self.bias = bias


class Recurrent:
    """The products before and behind a recurrent layer: `inner` and `out`."""

    mixes = True
    __slots__ = ("conv", "inner", "out")

    def __init__(self, inner: Linear, conv: Conv, out: Linear) -> None:
        self.inner = inner
        self.conv = conv
        self.out = out

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Compute the last product, [T, inner] → [T, hidden]."""
        return self.out.forward(ops, x, adapter)


class ShortConv(Recurrent):
    """out(c · conv(b · v)), with b, c and v from `inner` (see `ShortConvConfig`)."""

    __slots__ = ()

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """Mix rows [T, hidden] → [T, channels]."""
        parts, conv = self.inner.forward(ops, x, tokens.adapter), self.conv
        return ops.causal_conv1d(parts, conv.weight, conv.bias, cache.conv, tokens.meta, "gated")


class DeltaRule(Recurrent):
    """A gated delta rule (see `DeltaConfig`). `inner` makes q, k, v, a gate, b and a.

    Args:
        rate, bias: of each head of v, as `Ops.gated_delta_rule` takes them.
        gain, eps: of the norm of each head of the result.
    """

    __slots__ = ("bias", "config", "eps", "gain", "rate")

    def __init__(
        self,
        config: DeltaConfig,
        inner: Linear,
        conv: Conv,
        out: Linear,
        *,
        rate: Array,
        bias: Array,
        gain: Array,
        eps: float,
    ) -> None:
        super().__init__(inner, conv, out)
        self.config = config
        self.rate = rate
        self.bias = bias
        self.gain = gain
        self.eps = eps

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """[T, hidden] → [T, heads · value_dim]."""
        config, conv, meta = self.config, self.conv, tokens.meta
        parts = self.inner.forward(ops, x, tokens.adapter)
        qkv = ops.causal_conv1d(parts, conv.weight, conv.bias, cache.conv, meta, "silu")
        gate = config.channels
        beta = gate + config.values
        decay = beta + config.value_heads
        y = ops.gated_delta_rule(
            qkv, parts, parts, self.rate, self.bias, cache.matrix, meta, config.key_heads,
            decay, beta,
        )  # fmt: skip
        return ops.gated_norm(y, parts, self.gain, self.eps, "silu", gate)


class Mamba2(Recurrent):
    """A state space (see `Mamba2Config`). `inner` makes a gate, x, B, C and dt.

    Args:
        rate, bias, skip: of each head, as `Ops.mamba2_scan` takes them.
        gain, eps: of the norm of the result, as `Ops.gated_norm` takes them.
    """

    __slots__ = ("bias", "config", "eps", "gain", "rate", "skip")

    def __init__(
        self,
        config: Mamba2Config,
        inner: Linear,
        conv: Conv,
        out: Linear,
        *,
        rate: Array,
        bias: Array,
        skip: Array,
        gain: Array,
        eps: float,
    ) -> None:
        super().__init__(inner, conv, out)
        self.config = config
        self.rate = rate
        self.bias = bias
        self.skip = skip
        self.gain = gain
        self.eps = eps

    def mix(self, ops: Ops, x: Array, cache: LayerStates, tokens: Tokens) -> Array:
        """[T, hidden] → [T, heads · head_dim]."""
        config, conv, meta = self.config, self.conv, tokens.meta
        parts = self.inner.forward(ops, x, tokens.adapter)
        xbc = ops.causal_conv1d(
            parts, conv.weight, conv.bias, cache.conv, meta, "silu", config.inner
        )
        y = ops.mamba2_scan(
            xbc, parts, self.rate, self.skip, self.bias, cache.matrix, meta, config.groups,
            config.inner + config.channels, config.limits,
        )  # fmt: skip
        return ops.gated_norm(y, parts, self.gain, self.eps, "silu", norm_first=False)
