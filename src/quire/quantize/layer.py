"""One decoder layer: its linear weights quantized, by any method."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from quire.core.config import ModelConfig
from quire.quantize.awq import search_scale
from quire.quantize.calibration import InputStatistics
from quire.quantize.recipe import Recipe
from quire.quantize.targets import Quantized, Target

_LINEAR = ("attn.qkv", "attn.out", "mlp.gate_up", "mlp.up", "mlp.down")


def linear_names(index: int, names: Collection[str]) -> list[str]:
    """Of a layer's parameters those that are linear weights."""
    wanted = [f"layers.{index}.{stem}.weight" for stem in _LINEAR]
    return [name for name in wanted if name in names]


def quantize_weight(
    weight: Tensor, statistics: InputStatistics | None, target: Target, recipe: Recipe
) -> Quantized:
    """One linear weight, float32 [N, K], by the method of `recipe`."""
    if statistics is None:
        return target.nearest(weight)
    if recipe.method == "gptq":
        return target.gptq(weight, statistics.hessian, act_order=recipe.act_order)
    return target.nearest_for(weight, statistics.hessian)


def fold_scales(
    config: ModelConfig,
    index: int,
    parameters: dict[str, Tensor],
    statistics: Mapping[str, InputStatistics],
    target: Target,
    dtypes: Mapping[str, torch.dtype],
) -> None:
    """AWQ's scales, searched and folded: changes `parameters` and `statistics` of a layer.

    The layer computes what it did, but for the rounding of norms and biases to `dtypes`, which the
    columns make up for.
    """
    fold = _Fold(config, f"layers.{index}.", parameters, statistics, target, dtypes)
    fold.norm("attn_norm", "attn.qkv")
    fold.values()
    fold.norm("mlp_norm", "mlp.gate_up" if config.gated_mlp else "mlp.up")
    fold.feed_forward()


class _Fold:
    def __init__(
        self,
        config: ModelConfig,
        prefix: str,
        parameters: dict[str, Tensor],
        statistics: Mapping[str, InputStatistics],
        target: Target,
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        self._config = config
        self._prefix = prefix
        self._parameters = parameters
        self._statistics = statistics
        self._target = target
        self._dtypes = dtypes

    def norm(self, norm: str, linear: str) -> None:
        """Into a norm's weight and bias, which are stored rounded."""
        name = f"{self._prefix}{norm}.weight"
        one = 1.0 if self._config.norm_plus_one else 0.0
        gain = self._parameters[name] + one
        folded = self._rounded(name, gain / self._search(linear) - one)
        # What rounding made of it; a channel that is off stays as it is.
        off = folded + one == 0
        scale = torch.where(off, 1.0, gain / (folded + one))
        self._parameters[name] = torch.where(off, self._parameters[name], folded)
        bias = f"{self._prefix}{norm}.bias"
        if bias in self._parameters:
            self._parameters[bias] = self._rounded(bias, self._parameters[bias] / scale)
        self._scale_columns(linear, scale)

    def values(self) -> None:
        """Into the rows that make values, which each of their query heads gets."""
        config = self._config
        repeats = config.num_attention_heads // config.num_key_value_heads
        scale = self._search("attn.out", repeats, config.head_dim)
        self._scale_columns("attn.out", scale)
        rows = config.num_key_value_heads * config.head_dim
        self._divide_rows(
            "attn.qkv", scale.view(-1, repeats, config.head_dim)[:, 0].reshape(-1), rows
        )

    def feed_forward(self) -> None:
        """Into the rows of up, where what stands between is linear in them: up in a gated one, and
        those before a ReLU."""
        config = self._config
        if not config.gated_mlp and config.activation != "relu":
            return
        scale = self._search("mlp.down")
        self._scale_columns("mlp.down", scale)
        up = "mlp.gate_up" if config.gated_mlp else "mlp.up"
        self._divide_rows(up, scale, config.intermediate_size)

    def _search(self, linear: str, repeats: int = 1, repeated: int = 1) -> Tensor:
        name = f"{self._prefix}{linear}.weight"
        seen = self._statistics[name]
        return search_scale(
            self._parameters[name],
            seen.hessian,
            seen.magnitude / max(seen.tokens, 1),
            lambda weight: self._target.nearest(weight).dequantize(),
            repeats,
            repeated,
        )

    def _scale_columns(self, linear: str, scale: Tensor) -> None:
        """Multiply the columns, and let the statistics be those of inputs divided by `scale`."""
        name = f"{self._prefix}{linear}.weight"
        self._parameters[name] *= scale
        seen = self._statistics[name]
        seen.hessian /= scale
        seen.hessian /= scale.unsqueeze(1)
        seen.magnitude /= scale

    def _divide_rows(self, linear: str, scale: Tensor, rows: int) -> None:
        """Divide the last `rows` rows, and their biases."""
        self._parameters[f"{self._prefix}{linear}.weight"][-rows:] /= scale.unsqueeze(1)
        bias = f"{self._prefix}{linear}.bias"
        if bias in self._parameters:
            self._parameters[bias][-rows:] /= scale

    def _rounded(self, name: str, values: Tensor) -> Tensor:
        return values.to(self._dtypes[name]).float()
