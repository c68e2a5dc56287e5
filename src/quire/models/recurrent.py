"""Makes recurrent layers out of their declarations and parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.core.config import ModelConfig
from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.layers import DeltaConfig, ShortConvConfig
from quire.layers.linear import Linear
from quire.layers.recurrent import Conv, DeltaRule, Mamba2, ShortConv
from quire.models.layout import ConvSpec, LinearSpec, RecurrentSpec
from quire.models.parameters import ParameterSource
from quire.ops.interface import Ops


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

    config, eps = spec.config, model.norm_eps
    inner, conv = linear(spec.inner), _conv(spec.conv, source, ops)
    if isinstance(config, ShortConvConfig):
        return ShortConv(inner, conv, linear(spec.out))
    assert spec.rate is not None
    assert spec.bias is not None
    rate, bias = ops.array(np.exp(vector(spec.rate.name))), ops.array(vector(spec.bias.name))
    assert spec.norm is not None
    gain = vector(f"{spec.norm.stem}.weight")
    if isinstance(config, DeltaConfig):
        each = ops.array(gain.reshape(1, -1))
        out = linear(spec.out)
        return DeltaRule(config, inner, conv, out, rate=rate, bias=bias, gain=each, eps=eps)
    assert spec.skip is not None
    skip = ops.array(vector(spec.skip.name))
    groups = ops.array(gain.reshape(config.groups, -1))
    out = linear(spec.out)
    return Mamba2(config, inner, conv, out, rate=rate, bias=bias, skip=skip, gain=groups, eps=eps)


def _conv(spec: ConvSpec, source: ParameterSource, ops: Ops) -> Conv:
    """Return a convolution with its weight [width, channels]."""
    weight = source.tensor(f"{spec.stem}.weight").reshape(spec.channels, spec.width)
    bias = ops.array(source.tensor(f"{spec.stem}.bias")) if spec.bias else None
    return Conv(ops.array(np.ascontiguousarray(weight.T)), bias)
