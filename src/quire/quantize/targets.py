"""What a scheme makes of one linear weight, before it is written."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.ops.quantized import QuantizedWeight
from quire.quantize.gguf_target import Blocks, GGUFTarget
from quire.quantize.gptq import gptq, nearer_rows
from quire.quantize.grid import Grid, in_groups, quantize_with, round_to_nearest
from quire.quantize.recipe import Recipe

Quantized = QuantizedWeight | Blocks


class Target(Protocol):
    """A scheme, as the methods see it; weights are float32 [N, K], second moments [K, K]."""

    def check(self, module: str, columns: int) -> None:
        """Raises ConfigError where rows of `columns` cannot be stored."""

    def nearest(self, weight: Tensor) -> Quantized:
        """Rounded to nearest."""

    def nearest_for(self, weight: Tensor, hessian: Tensor) -> Quantized:
        """The same, scales chosen for inputs of these second moments; no row is worse for it."""

    def gptq(self, weight: Tensor, hessian: Tensor, *, act_order: bool) -> Quantized:
        """Column by column, the later ones making up for the earlier ones' errors."""


class CompressedTarget:
    """A scheme of compressed-tensors.

    Attributes:
        group: columns that share a scale; None is all.
    """

    def __init__(self, recipe: Recipe, scale_dtype: torch.dtype) -> None:
        scheme = recipe.scheme
        self.group = recipe.group_size if scheme == "int4" else None
        self._grid = Grid(
            "float8" if scheme == "fp8" else "int",
            4 if scheme == "int4" else 8,
            recipe.symmetric,
            scale_dtype,
        )

    def check(self, module: str, columns: int) -> None:
        if columns % (self.group or 1):
            fitting = [size for size in (128, 64, 32, 16, 8) if columns % size == 0]
            raise ConfigError(
                f"{module} has {columns} columns, which are no groups of {self.group}.",
                fix=f"--group-size {fitting[0]} fits it." if fitting else f"--ignore {module}.",
                param="--group-size",
            )

    def nearest(self, weight: Tensor) -> QuantizedWeight:
        return round_to_nearest(weight, self._grid, self._width(weight))

    def nearest_for(self, weight: Tensor, hessian: Tensor) -> QuantizedWeight:
        group = self._width(weight)
        importance = in_groups(hessian.diagonal(), group)
        scales = self._grid.fit(in_groups(weight, group), importance)
        found = quantize_with(weight, self._grid, group, scales)
        return nearer_rows(weight, hessian, found, self.nearest(weight))

    def gptq(self, weight: Tensor, hessian: Tensor, *, act_order: bool) -> QuantizedWeight:
        return gptq(weight, hessian, self._grid, self._width(weight), act_order=act_order)

    def _width(self, weight: Tensor) -> int:
        return self.group or weight.shape[1]


def target_of(recipe: Recipe, dtype: torch.dtype) -> Target:
    """The target of a recipe; `dtype` is the model's, in which scales are stored."""
    return GGUFTarget(recipe.scheme) if recipe.is_gguf else CompressedTarget(recipe, dtype)
