"""Quantize the linear weights of one decoder layer, by any method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.core.dtypes import FLOAT32, DType, Floats, converted
from quire.core.model_config import ModelConfig
from quire.models.layout import Layout
from quire.models.specs import AttentionSpec, LinearSpec, Mixer, MLPSpec, MoESpec, NormSpec, linears
from quire.quantize.awq import search_scale
from quire.quantize.calibration import InputStatistics, Statistics
from quire.quantize.recipe import Recipe
from quire.quantize.targets import Quantized, Target
from quire.system.records import dataclass

_LINEAR = ("silu_mul", "gelu_mul", "gelu_tanh_mul", "relu2_mul", "relu")
"""Activations that are linear in up, or a ReLU, which commutes with scales; gpt-oss's is not."""


def linear_names(config: ModelConfig, index: int) -> list[str]:
    return [linear.name for linear in linears(Layout(config).layers[index])]


def quantize_weight(
    weight: Floats, statistics: InputStatistics | None, target: Target, recipe: Recipe
) -> Quantized:
    """Quantize one linear weight, float32 [N, K], by the method of `recipe`; if no input was seen,
    to nearest."""
    if statistics is None or not statistics.tokens:
        return target.nearest(weight)
    if recipe.method == "gptq":
        return target.gptq(weight, statistics.hessian, act_order=recipe.act_order)
    return target.nearest_for(weight, statistics.hessian)


def fold_scales(
    config: ModelConfig,
    index: int,
    parameters: dict[str, Floats],
    statistics: Statistics,
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
        if sublayer.before is not None and sublayer.before.weight:
            with_next = sublayer.parallel and layer[i + 1].before is None
            readers = layer[i : i + 1 + with_next]
            fold.norm(sublayer.before, [linear for r in readers for linear in _readers(r.mixer)])
        if isinstance(mixer, (AttentionSpec, MLPSpec)) and mixer.sub_norm is not None:
            last = mixer.out if isinstance(mixer, AttentionSpec) else mixer.down
            fold.norm(mixer.sub_norm, [last])
        elif isinstance(mixer, AttentionSpec):
            # Several query heads read each value head.
            repeats = config.num_attention_heads // config.num_key_value_heads
            fold.rows(mixer.qkv, mixer.out, repeats, config.head_dim)
        elif config.activation in _LINEAR:
            assert isinstance(mixer, (MLPSpec, MoESpec)), "other layers are refused earlier"
            fold.rows(mixer.up, mixer.down)
            shared = mixer.shared if isinstance(mixer, MoESpec) else None
            if shared is not None:
                fold.rows(shared.up, shared.down)


def _readers(mixer: Mixer) -> list[LinearSpec]:
    """Return the layers that read the input of a sub-layer which can be calibrated."""
    if isinstance(mixer, AttentionSpec):
        return [mixer.qkv] if mixer.gate is None else [mixer.qkv, mixer.gate]
    if not isinstance(mixer, MoESpec):
        return [leaf for leaf in mixer.leaves() if isinstance(leaf, LinearSpec)][:1]
    shared = mixer.shared.up if mixer.shared is not None else None
    found = mixer.router, mixer.up, shared, mixer.shared_gate
    return [reader for reader in found if reader is not None]


@dataclass(frozen=True, slots=True)
class _Fold:
    config: ModelConfig
    parameters: dict[str, Floats]
    statistics: Statistics
    target: Target
    dtypes: Mapping[str, DType]

    def norm(self, norm: NormSpec, readers: Sequence[LinearSpec]) -> None:
        """Fold a scale into the norm's weight and bias, which are stored rounded.

        Args:
            readers: what reads the norm; the scale is that of the first linear layer among them.
        """
        name = f"{norm.stem}.weight"
        one = 1.0 if self.config.norm_gain == "plus_one" else 0.0
        first = next(reader for reader in readers if reader.kind == "linear")
        gain = self.parameters[name] + one
        folded = self._rounded(name, gain / self._search(self._experts(first)) - one)
        # The scale after rounding; a channel of gain 0 does not change.
        off = folded + one == 0
        scale = np.where(off, 1.0, gain / (folded + one))
        self.parameters[name] = np.where(off, self.parameters[name], folded)
        if norm.bias:
            bias = f"{norm.stem}.bias"
            self.parameters[bias] = self._rounded(bias, self.parameters[bias] / scale)
        for linear in readers:
            for expert in self._experts(linear):
                expert.scale_columns(scale)

    def rows(self, made: LinearSpec, used: LinearSpec, repeats: int = 1, width: int = 1) -> None:
        """Fold the scales into the last part of `made`, whose rows produce the columns of `used`;
        each run of `width` rows produces `repeats` runs of columns. Each expert has its own."""
        last = made.parts[-1]
        for above, below in zip(self._experts(made), self._experts(used), strict=True):
            scale = self._search([below], repeats, width)
            below.scale_columns(scale)
            divisor = scale.reshape(-1, repeats, width)[:, 0].reshape(-1)
            above.weight[-last:] /= divisor[:, np.newaxis]
            if above.bias is not None:
                above.bias[-last:] /= divisor

    def _experts(self, linear: LinearSpec) -> list[_Expert]:
        """Return the experts of a linear layer, or the layer."""
        count = max(1, linear.experts)
        weights = np.split(self.parameters[linear.name], count)
        bias = self.parameters[f"{linear.stem}.bias"] if linear.bias else None
        biases = [None] * count if bias is None else np.split(bias, count)
        seen = self.statistics.get(linear.name, [None] * count)
        return [_Expert(*parts) for parts in zip(weights, biases, seen, strict=True)]

    def _search(self, experts: Sequence[_Expert], repeats: int = 1, repeated: int = 1) -> Floats:
        """Return the best scale of the columns; 1 if no input was seen."""
        found = [(e.weight, e.seen) for e in experts if e.seen is not None and e.seen.tokens]
        if not found:
            return np.ones(experts[0].weight.shape[1], np.float32)
        tokens = sum(seen.tokens for _, seen in found)
        return search_scale(
            [weight for weight, _ in found],
            [seen.hessian for _, seen in found],
            np.sum([seen.magnitude for _, seen in found], axis=0) / np.float32(tokens),
            lambda weight: self.target.nearest(weight).dequantize(),
            repeats,
            repeated,
        )

    def _rounded(self, name: str, values: Floats) -> Floats:
        return converted(converted(values, self.dtypes[name]), FLOAT32)


@dataclass(frozen=True, slots=True)
class _Expert:
    """Views of one expert's rows, or of a whole layer.

    Attributes:
        seen: its inputs; None of a router.
    """

    weight: Floats
    bias: Floats | None
    seen: InputStatistics | None

    def scale_columns(self, scale: Floats) -> None:
        """Multiply the columns; divide the inputs in the statistics by `scale`."""
        np.multiply(self.weight, scale, out=self.weight)
        if self.seen is not None:
            np.divide(self.seen.hessian, scale, out=self.seen.hessian)
            np.divide(self.seen.hessian, scale[:, np.newaxis], out=self.seen.hessian)
            np.divide(self.seen.magnitude, scale, out=self.seen.magnitude)
