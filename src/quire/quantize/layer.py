"""Quantize the linear weights of one decoder layer, by any method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.config import ModelConfig
from quire.core.dtypes import FLOAT32, DType, Floats, converted
from quire.models.layout import AttentionSpec, Layout, LinearSpec, NormSpec, linears
from quire.quantize.awq import search_scale
from quire.quantize.calibration import InputStatistics
from quire.quantize.recipe import Recipe
from quire.quantize.targets import Quantized, Target


def linear_names(config: ModelConfig, index: int) -> list[str]:
    """Return the names of a layer's linear weights."""
    return [linear.name for linear in linears(Layout(config).layers[index])]


def quantize_weight(
    weight: Floats, statistics: InputStatistics | None, target: Target, recipe: Recipe
) -> Quantized:
    """Quantize one linear weight, float32 [N, K], by the method of `recipe`."""
    if statistics is None:
        return target.nearest(weight)
    if recipe.method == "gptq":
        return target.gptq(weight, statistics.hessian, act_order=recipe.act_order)
    return target.nearest_for(weight, statistics.hessian)


def fold_scales(
    config: ModelConfig,
    index: int,
    parameters: dict[str, Floats],
    statistics: Mapping[str, InputStatistics],
    target: Target,
    dtypes: Mapping[str, DType],
) -> None:
    """Search AWQ's scales and fold them: changes `parameters` and `statistics` of a layer.

    The layer still computes the same function, except that norms and biases are rounded to
    `dtypes`; the scales of the columns compensate for this rounding.
    """
    fold = _Fold(config, parameters, statistics, target, dtypes)
    layer = Layout(config).layers[index]
    for i, sublayer in enumerate(layer):
        mixer = sublayer.mixer
        if sublayer.before is not None:
            readers = layer[i : i + 1 + sublayer.parallel]
            fold.norm(sublayer.before, [reader.linears[0] for reader in readers])
        if isinstance(mixer, AttentionSpec):
            # Several query heads read each value head.
            repeats = config.num_attention_heads // config.num_key_value_heads
            fold.rows(mixer.qkv, mixer.out, repeats, config.head_dim)
        elif config.gated_mlp or config.activation == "relu":
            # The activation between them is linear in up, or a ReLU, which commutes with scales.
            fold.rows(mixer.up, mixer.down)


@dataclass(frozen=True, slots=True)
class _Fold:
    config: ModelConfig
    parameters: dict[str, Floats]
    statistics: Mapping[str, InputStatistics]
    target: Target
    dtypes: Mapping[str, DType]

    def norm(self, norm: NormSpec, readers: Sequence[LinearSpec]) -> None:
        """Fold the first reader's scale into the norm's weight and bias, which are stored rounded;
        `readers` are the linear layers that read the norm."""
        name = f"{norm.stem}.weight"
        one = 1.0 if self.config.norm_gain == "plus_one" else 0.0
        gain = self.parameters[name] + one
        folded = self._rounded(name, gain / self._search(readers[0]) - one)
        # The scale after rounding; a channel of gain 0 does not change.
        off = folded + one == 0
        scale = np.where(off, 1.0, gain / (folded + one))
        self.parameters[name] = np.where(off, self.parameters[name], folded)
        if norm.bias:
            bias = f"{norm.stem}.bias"
            self.parameters[bias] = self._rounded(bias, self.parameters[bias] / scale)
        for linear in readers:
            self._scale_columns(linear, scale)

    def rows(self, made: LinearSpec, used: LinearSpec, repeats: int = 1, width: int = 1) -> None:
        """Fold the scales into the last part of `made`, whose rows produce the columns of `used`;
        each run of `width` rows produces `repeats` runs of columns."""
        scale = self._search(used, repeats, width)
        self._scale_columns(used, scale)
        divisor, rows = scale.reshape(-1, repeats, width)[:, 0].reshape(-1), made.parts[-1]
        self.parameters[made.name][-rows:] /= divisor[:, np.newaxis]
        if made.bias:
            self.parameters[f"{made.stem}.bias"][-rows:] /= divisor

    def _search(self, linear: LinearSpec, repeats: int = 1, repeated: int = 1) -> Floats:
        seen = self.statistics[linear.name]
        return search_scale(
            self.parameters[linear.name],
            seen.hessian,
            seen.magnitude / max(seen.tokens, 1),
            lambda weight: self.target.nearest(weight).dequantize(),
            repeats,
            repeated,
        )

    def _scale_columns(self, linear: LinearSpec, scale: Floats) -> None:
        """Multiply the columns; divide the inputs in the statistics by `scale`."""
        self.parameters[linear.name] *= scale
        seen = self.statistics[linear.name]
        seen.hessian /= scale
        seen.hessian /= scale[:, np.newaxis]
        seen.magnitude /= scale

    def _rounded(self, name: str, values: Floats) -> Floats:
        return converted(converted(values, self.dtypes[name]), FLOAT32)
