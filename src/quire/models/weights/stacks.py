"""Experts that share a tensor in a checkpoint: where each expert's rows are in it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.models.parameters import Parameter
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.core.dtypes import HostArray
    from quire.core.quantized import QuantizedWeight
    from quire.models.architecture import WeightNames


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows first, first + step … of the matrix of one expert, which has `height` rows."""

    height: int
    first: int
    step: int
    expert: int = 0

    def of(self, values: HostArray, rows: int, *, transposed: bool) -> HostArray:
        """Return these rows of [experts, height(, columns)], or columns of a transposed one."""
        part = slice(self.first, self.first + self.step * rows, self.step)
        one: HostArray = values[self.expert]
        return one[:, part] if transposed else one[part]

    def of_quantized(self, weight: QuantizedWeight, rows: int) -> QuantizedWeight:
        """Return these rows of [experts * height, columns]."""
        return weight.rows(self.expert * self.height + self.first, rows, self.step)


@dataclass(frozen=True, slots=True)
class Stacked:
    """One tensor of all experts of a layer.

    Attributes:
        name: within a layer, whole: [experts, out, in].
        transposed: it is [experts, in, out].
        interleaved: rows of gate and of up alternate.
        either: it is not transposed if its shape allows that, as Transformers reads it.
    """

    name: str
    transposed: bool = False
    interleaved: bool = False
    either: bool = False

    def cuts(self, parts: tuple[int, ...]) -> list[Cut]:
        """Return where the parts of the first expert are."""
        height, count = sum(parts), len(parts)
        if self.interleaved:
            return [Cut(height, i, count) for i in range(count)]
        return [Cut(height, sum(parts[:i]), 1) for i in range(count)]


def stacks(
    names: WeightNames, parameter: Parameter, stored: Container[str]
) -> list[tuple[str, Stacked, tuple[int, ...]]]:
    """Return the tensors that all experts of `parameter` share, and the parts that each holds.

    There is one tensor, or one for each part, as GGUF has them: their names are those of an expert
    without its number. Returns none if the experts have tensors of their own.
    """
    if not parameter.experts:
        return []
    parts = parameter.parts[: len(parameter.parts) // parameter.experts]
    _, number, stem = parameter.name.split(".", 2)
    stacked = names.stacked.get(stem.removesuffix(".weight"))
    if stacked is not None:
        bare = names.layer_prefix.format(number) + stacked.name
        if bare in stored:
            return [(bare, stacked, parts)]
        if f"{bare}.transposed" in stored:
            either = replace(stacked, transposed=True, either=True)
            return [(f"{bare}.transposed", either, parts)]
        if f"{bare}.blocks" in stored:  # quantized as published, never transposed
            return [(bare, replace(stacked, transposed=False), parts)]
        if f"{bare}.weight" in stored:  # a linear layer of experts, or GGUF's
            plain = replace(stacked, transposed=False, interleaved=False)
            return [(f"{bare}.weight", plain, parts)]
    sources = names.sources(parameter.name)
    every = [name.replace(".{}", "") for name in sources]
    if every[0] == sources[0] or every[0] not in stored:
        return []
    each = [(part,) for part in parts] if len(every) > 1 else [parts]
    return [(name, Stacked(name), part) for name, part in zip(every, each, strict=True)]
