"""Quantize one linear weight as a scheme stores it."""

from __future__ import annotations

from typing import Protocol

from quire.core.dtypes import DType, Floats
from quire.core.errors import ConfigError
from quire.core.quantized import QuantizedWeight
from quire.quantize.gguf_target import Blocks, GGUFTarget
from quire.quantize.gptq import gptq, nearer_rows
from quire.quantize.grid import Grid, round_to_nearest
from quire.quantize.recipe import Recipe

Quantized = QuantizedWeight | Blocks


class Target(Protocol):
    """A scheme; weights are float32 [N, K], second moments [K, K]."""

    def check(self, module: str, columns: int) -> None:
        """Raises ConfigError if rows of `columns` cannot be stored."""

    def nearest(self, weight: Floats) -> Quantized:
        """Round to nearest."""

    def nearest_for(self, weight: Floats, hessian: Floats) -> Quantized:
        """Round with scales chosen for inputs with these second moments; no row's error grows."""

    def gptq(self, weight: Floats, hessian: Floats, *, act_order: bool) -> Quantized:
        """Round column by column; later columns compensate for errors of earlier ones."""


class CompressedTarget:
    """A scheme of compressed-tensors.

    Attributes:
        group: columns that share a scale; None is all.
    """

    def __init__(self, recipe: Recipe, scale_dtype: DType) -> None:
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

    def nearest(self, weight: Floats) -> QuantizedWeight:
        return round_to_nearest(weight, self._grid, self._width(weight))

    def nearest_for(self, weight: Floats, hessian: Floats) -> QuantizedWeight:
        group = self._width(weight)
        found = round_to_nearest(weight, self._grid, group, hessian.diagonal())
        return nearer_rows(weight, hessian, found, self.nearest(weight))

    def gptq(self, weight: Floats, hessian: Floats, *, act_order: bool) -> QuantizedWeight:
        return gptq(weight, hessian, self._grid, self._width(weight), act_order=act_order)

    def _width(self, weight: Floats) -> int:
        return self.group or weight.shape[1]


def target_of(recipe: Recipe, dtype: DType) -> Target:
    """Return the target of a recipe; scales are stored in `dtype`, the model's dtype."""
    return GGUFTarget(recipe.scheme) if recipe.is_gguf else CompressedTarget(recipe, dtype)
