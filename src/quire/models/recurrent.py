"""Makes recurrent layers out of their declarations and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.layers import DeltaConfig, ShortConvConfig
from quire.core.model_config import ModelConfig
from quire.layers.linear import Linear
from quire.layers.recurrent import ChannelDeltaRule, DeltaRule, Mamba2, ShortConv
from quire.models.parameters import ParameterSource
from quire.models.specs import LinearSpec, RecurrentSpec
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

    config, conv = spec.config, spec.conv
    weight = source.tensor(f"{conv.stem}.weight").reshape(conv.channels, conv.width)
    products: dict[str, Any] = {
        "inner": linear(spec.inner),
        "conv": ops.array(np.ascontiguousarray(weight.T)),
        "conv_bias": ops.array(source.tensor(f"{conv.stem}.bias")) if conv.bias else None,
    }
    if isinstance(config, ShortConvConfig):
        return ShortConv(**products, out=linear(spec.out))
    assert spec.rate is not None
    assert spec.bias is not None
    products |= {
        "rate": ops.array(np.exp(vector(spec.rate.name))),
        "bias": ops.array(vector(spec.bias.name)),
        "eps": model.norm_eps,
    }
    gain = None if spec.norm is None else vector(f"{spec.norm.stem}.weight")
    if isinstance(config, DeltaConfig):
        assert gain is not None
        products |= {"config": config, "gain": ops.array(gain.reshape(1, -1))}
        if not config.gate_rank:
            return DeltaRule(**products, out=linear(spec.out))
        decay, gate = ([linear(each) for each in pair] for pair in (spec.decay, spec.gate))
        return ChannelDeltaRule(**products, decay=decay, gate=gate, out=linear(spec.out))
    assert spec.skip is not None
    skip = ops.array(vector(spec.skip.name))
    groups = None if gain is None else ops.array(gain.reshape(config.groups, -1))
    return Mamba2(**products, config=config, skip=skip, gain=groups, out=linear(spec.out))
