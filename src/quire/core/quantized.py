"""The canonical form of a quantized weight: every checkpoint's format is read as this, and every
packed form is made from it.

    W[n, c(k)] = value(codes[n, k]) · scale[n, g] + offset[n, g]          g = k // group
    W[n, c(k)] = (codes[n, k] − zero[n, g]) · scale[n, g]

value is the codebook's entry if there is a codebook, else the code itself, a small integer or an
8-bit float; c(k) is k, or `permutation[k]` if a file's groups are not runs of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import FLOAT8, DType, HostArray, converted
from quire.system.records import dataclass
from quire.system.user_arrays import host_array

Floats = NDArray[np.float32]
CODE_TYPES = frozenset({np.dtype(np.uint8), np.dtype(np.int8)}) | FLOAT8
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The 4-bit float of MXFP4 and NVFP4 (OCP Microscaling Formats 1.0, 5.3.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """Rows of a linear layer's weight [N, K].

    Attributes:
        codes: [N, K], of one of `CODE_TYPES`; one byte each, however few bits they need.
        bits: bits of a code, 2 to 8; codes are 0 … 2^bits − 1, or for int8 the signed range.
        scale: float32 [N, G], G = ceil(K / group).
        group: columns that share a scale; K if a row has one.
        zero: float32 [N, G], subtracted from the codes before they are scaled; or None.
        offset: float32 [N, G], added after scaling; or None. Not together with `zero`.
        codebook: float32 [2^bits], what the codes stand for (nf4, e2m1, iq4_nl …); or None.
        permutation: int64 [K], the column of the weight that column k of `codes` is; or None.
        input_scale: scale of statically quantized activations, as the checkpoint calibrated it;
            None if activations are not quantized, or row by row.
        float_activations: the checkpoint quantizes 8-bit weights only (W8A16); else a provider
            may round activations to 8 bits (W8A8).
        factor: float32 [N]; over a row's factor, its scales are 8-bit floats (NVFP4); or None.
    """

    codes: HostArray
    bits: int
    scale: Floats
    group: int
    zero: Floats | None = None
    offset: Floats | None = None
    codebook: Floats | None = None
    permutation: NDArray[np.int64] | None = None
    input_scale: float | None = None
    float_activations: bool = False
    factor: Floats | None = None

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype not in CODE_TYPES:
            raise ValueError(f"codes are {self.codes.dtype} {list(self.codes.shape)}")
        n, k = self.codes.shape
        wanted = (n, -(-k // self.group))
        for name in ("scale", "zero", "offset"):
            t = getattr(self, name)
            if t is not None and (t.dtype != np.float32 or t.shape != wanted):
                raise ValueError(f"{name} is {t.dtype} {list(t.shape)}; wanted {list(wanted)}")
        if self.zero is not None and self.offset is not None:
            raise ValueError("a weight has zero points or offsets, not both")
        if self.codebook is not None and len(self.codebook) != 1 << self.bits:
            raise ValueError(f"the codebook has {len(self.codebook)} entries for {self.bits} bits")
        if self.permutation is not None and self.permutation.shape != (k,):
            raise ValueError(f"the permutation has shape {list(self.permutation.shape)}")

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def dequantize(self) -> Floats:
        """Return float32 [N, K], columns in the weight's order; each operation rounds once."""
        n, k = self.shape
        whole_groups = k % self.group == 0
        shape = (n, -1, self.group) if whole_groups else (n, k)

        def by_column(numbers: Floats) -> Floats:
            if whole_groups:
                return numbers[:, :, np.newaxis]
            return np.repeat(numbers, self.group, axis=1)[:, :k]

        codes = self.codes.reshape(shape)
        if self.codebook is None:
            values = converted(codes, np.dtype(np.float32))
        else:
            values = self.codebook[codes]
        with np.errstate(all="ignore"):  # a damaged scale may be anything
            if self.zero is not None:
                values -= by_column(self.zero)
            values *= by_column(self.scale)
            if self.offset is not None:
                values += by_column(self.offset)
        values = values.reshape(n, k)
        if self.permutation is None:
            return values
        ordered = np.empty_like(values)
        ordered[:, self.permutation] = values
        return ordered

    def rows(self, first: int, count: int, step: int = 1) -> QuantizedWeight:
        """Return rows first, first + step …, `count` of them, as views."""
        return self.take(slice(first, first + count * step, step))

    def take(self, part: slice | NDArray[np.int64]) -> QuantizedWeight:
        """Return the rows that `part` selects: views of a slice, else copies."""
        return replace(
            self,
            codes=self.codes[part],
            scale=self.scale[part],
            zero=None if self.zero is None else self.zero[part],
            offset=None if self.offset is None else self.offset[part],
            factor=None if self.factor is None else self.factor[part],
        )

    def columns(self, first: int, count: int) -> QuantizedWeight:
        """Return columns [first, first + count), copied.

        Raises:
            ValueError: they are no whole groups, or out of order.
        """
        _, k = self.shape
        last = first + count
        if self.permutation is not None:
            raise ValueError("the columns' groups are out of order")
        one_group = self.group >= k
        if not one_group and (first % self.group or (last % self.group and last != k)):
            raise ValueError(f"columns {first} to {last} are no whole groups of {self.group}")
        groups = slice(0, 1) if one_group else slice(first // self.group, -(-last // self.group))

        def of(numbers: Floats | None) -> Floats | None:
            return None if numbers is None else numbers[:, groups].copy()

        return replace(
            self,
            codes=self.codes[:, first:last].copy(),
            scale=self.scale[:, groups].copy(),
            group=count if one_group else self.group,
            zero=of(self.zero),
            offset=of(self.offset),
        )


Weight = HostArray | QuantizedWeight
Weights = Weight | Sequence[HostArray] | Sequence[QuantizedWeight]
"""One weight, or parts of one whose rows follow each other."""


def parts_of(weight: Weights) -> list[HostArray] | list[QuantizedWeight]:
    """Return the parts of a weight in a list; those of another library as numpy arrays.

    Raises:
        TypeError: a part is no array.
    """
    if isinstance(weight, QuantizedWeight):
        return [weight]
    parts: list[Any] = list(weight) if isinstance(weight, list | tuple) else [weight]
    if all(isinstance(part, QuantizedWeight) for part in parts):
        return parts
    return [host_array(part) for part in parts]


def columns_of(weight: Weight, first: int, count: int) -> Weight:
    """Return columns [first, first + count) of a weight.

    Raises:
        ValueError: its groups cannot be cut there.
    """
    if isinstance(weight, np.ndarray):
        return weight[:, first : first + count]
    return weight.columns(first, count)


def rows_of(parts: Sequence[Weight], first: int, count: int) -> list[Weight]:
    """Return rows [first, first + count) of all parts, as views of as many parts as have some."""
    found: list[Weight] = []
    begin = 0
    for part in parts:
        rows = part.shape[0]
        low, high = max(first, begin) - begin, min(first + count, begin + rows) - begin
        if low < high:
            found.append(
                part[low:high] if isinstance(part, np.ndarray) else part.rows(low, high - low)
            )
        begin += rows
    return found


def dense(weight: Weight, dtype: DType) -> HostArray:
    values = weight.dequantize() if isinstance(weight, QuantizedWeight) else weight
    return converted(values, dtype)


def can_follow(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    """Return whether the rows of both can be one packed weight."""
    return (
        (a.codes.dtype, a.bits, a.group, a.shape[1], a.input_scale, a.float_activations)
        == (b.codes.dtype, b.bits, b.group, b.shape[1], b.input_scale, b.float_activations)
        and (a.zero is None) == (b.zero is None)
        and (a.offset is None) == (b.offset is None)
        and (a.factor is None) == (b.factor is None)
        and same(a.codebook, b.codebook)
        and same(a.permutation, b.permutation)
    )


def joined(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Return the rows of all parts, one part after the other; each `can_follow` the first."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def rows(name: str) -> Floats | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)

    # As bytes, which are copied faster than 8-bit floats.
    codes = np.concatenate([part.codes.view(np.uint8) for part in parts])
    return replace(
        first,
        codes=codes.view(first.codes.dtype),
        scale=np.concatenate([part.scale for part in parts]),
        zero=rows("zero"),
        offset=rows("offset"),
        factor=rows("factor"),
    )


def same(a: HostArray | None, b: HostArray | None) -> bool:
    """Return whether both are None, or equal arrays."""
    if a is None or b is None:
        return a is b
    return np.array_equal(a, b)
