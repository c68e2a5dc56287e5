"""Makes recurrent layers out of their declarations and parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.layers import DeltaConfig, ShortConvConfig
from quire.core.model_config import ModelConfig
from quire.layers.linear import Linear
from quire.layers.recurrent import ChannelDeltaRule, DeltaRule, Mamba2, ShortConv
from quire.models.parameters import ParameterSource
from quire.models.specs import LinearSpec, RecurrentSpec
from quire.ops.interface import Ops
from quire.ops.metadata import Convolution, DeltaRules, GatedNorm, ScanRules


def recurrent_layer(
    spec: RecurrentSpec,
    source: ParameterSource,
    ops: Ops,
    linear: Callable[[LinearSpec], Linear],
    model: ModelConfig,
) -> ShortConv | DeltaRule | Mamba2:
    """Return the layer.

    Args:
        linear: builds its products.
    """

    def vector(name: str) -> HostArray:
        return converted(source.tensor(name), FLOAT32)

    config, conv = spec.config, spec.conv
    inner, taps = linear(spec.inner), source.tensor(f"{conv.stem}.weight")
    kernel = ops.array(np.ascontiguousarray(taps.reshape(conv.channels, conv.width).T))
    bias = ops.array(source.tensor(f"{conv.stem}.bias")) if conv.bias else None
    if isinstance(config, ShortConvConfig):
        return ShortConv(inner, Convolution(kernel, bias, "gated"), linear(spec.out))
    assert spec.rate is not None
    assert spec.bias is not None
    rate = ops.array(np.exp(vector(spec.rate.name)))
    step, eps = ops.array(vector(spec.bias.name)), model.norm_eps
    gain = None if spec.norm is None else vector(f"{spec.norm.stem}.weight")
    if isinstance(config, DeltaConfig):
        assert gain is not None
        weight, silu = ops.array(gain.reshape(1, -1)), Convolution(kernel, bias, "silu")
        first, heads = config.channels, config.key_heads
        if config.gate_rank:
            decay, gate = ([linear(each) for each in pair] for pair in (spec.decay, spec.gate))
            rules, norm = DeltaRules(rate, step, heads, 0, first), GatedNorm(weight, eps, "sigmoid")
            return ChannelDeltaRule(inner, silu, linear(spec.out), rules, norm, decay, gate)
        beta = first + config.values
        rules = DeltaRules(rate, step, heads, beta + config.value_heads, beta)
        norm = GatedNorm(weight, eps, "silu", first)
        return DeltaRule(inner, silu, linear(spec.out), rules, norm)
    assert spec.skip is not None
    skip, last = ops.array(vector(spec.skip.name)), config.inner + config.channels
    groups = None if gain is None else ops.array(gain.reshape(config.groups, -1))
    silu = Convolution(kernel, bias, "silu", config.inner)
    scan = ScanRules(rate, skip, step, config.groups, last, config.limits)
    norm = GatedNorm(groups, eps, "silu", norm_first=config.norm_first)
    return Mamba2(inner, silu, linear(spec.out), scan, norm)
