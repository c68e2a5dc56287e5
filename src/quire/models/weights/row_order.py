"""The order of a weight's packed rows, where it is not that of the checkpoint, and their factors.

Some architectures turn elements 2i and 2i + 1 of a head together, others i and i + rotary_dim / 2.
Attention only takes products of q and k, so the order of a head's elements is free as long as both
have the same. Their rows are put into the order of the halves when they are packed. If RoPE turns
the end of a head (latent attention), that end is put in front: the kernels turn the beginning.

Factors of results (Falcon-H1) are factors of rows: a step then does not pay for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.quantized import Floats, QuantizedWeight, Weight
from quire.models.parameters import Parameter

Parts = list[HostArray] | list[QuantizedWeight]


def row_order(parameter: Parameter) -> NDArray[np.int64] | None:
    """Return the checkpoint's row for each packed row; None if the order is the same.

    The last of the parameter's parts is v, whose rows stay, except where heads have a tail.
    """
    if parameter.runs:
        return np.concatenate([np.arange(first, first + n) for first, n in parameter.runs])
    paired, width, tail = parameter.paired, parameter.unit, parameter.tail
    if not paired and not tail:
        return None
    begin = width - tail if tail else 0
    turned = range(begin, begin + (tail or paired))
    head = [*turned[::2], *turned[1::2]] if paired else [*turned]
    head += range(begin) if tail else range(paired, width)
    rows = parameter.shape[0]
    end = rows if tail else rows - parameter.parts[-1]
    firsts = np.arange(0, end, width)[:, np.newaxis]
    return np.concatenate([(firsts + np.array(head)).reshape(-1), np.arange(end, rows)])


def packed_runs(parameter: Parameter, rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the runs of packed rows that are of one layer each: the layer, its first row, its end.

    A layer may have several: those of q with an output gate have v between them.

    Args:
        rows: of each layer that the checkpoint has for the parameter.
    """
    order = row_order(parameter)
    if order is None:
        ends = accumulate(rows)
        return [(i, end - n, end) for i, (n, end) in enumerate(zip(rows, ends, strict=True)) if n]
    of = np.repeat(np.arange(len(rows)), rows)[order]
    cuts = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(of)]
    return [(int(of[first]), first, end) for first, end in pairwise(cuts)]


def row_factors(parameter: Parameter) -> Floats | None:
    """Return what each packed row is multiplied by; None if nothing."""
    if not parameter.factors:
        return None
    return np.repeat(np.array(parameter.factors, dtype=np.float32), parameter.parts)


def packed_rows(parameter: Parameter, parts: Parts) -> Parts:
    """Return the parameter's rows as they are packed: in order, and multiplied.

    Args:
        parts: its rows, one after the other.
    """
    weights: Sequence[Weight] = _in_order(parameter, parts)
    factors = row_factors(parameter)
    if factors is not None:
        ends = np.cumsum([part.shape[0] for part in weights])[:-1]
        each = zip(weights, np.split(factors[:, np.newaxis], ends), strict=True)
        weights = [_multiplied(part, of) for part, of in each]
    return cast("Parts", weights)


def packed_bias(parameter: Parameter, bias: HostArray) -> HostArray:
    """Return the bias of the weight `parameter` in the same order, and multiplied."""
    order, factors = row_order(parameter), row_factors(parameter)
    if order is not None:
        bias = _taken([bias], order)
    return bias if factors is None else _times(bias, factors)


def _in_order(parameter: Parameter, parts: Parts) -> Parts:
    order = row_order(parameter)
    if order is None:
        return parts
    dense = [part for part in parts if isinstance(part, np.ndarray)]
    if dense:
        return [_taken(dense, order)]
    stored = [part for part in parts if isinstance(part, QuantizedWeight)]
    starts = np.cumsum([0, *(part.shape[0] for part in stored)])
    of = np.searchsorted(starts, order, side="right") - 1
    cuts = np.flatnonzero(np.diff(of)) + 1  # a weight's rows that follow each other stay together
    return [
        stored[of[rows[0]]].take(order[rows] - starts[of[rows[0]]])
        for rows in np.split(np.arange(len(order)), cuts)
    ]


def _multiplied(rows: Weight, factors: Floats) -> Weight:
    """Return rows times their factors; of a quantized weight its scales are multiplied."""
    if isinstance(rows, np.ndarray):
        return _times(rows, factors)
    offset = None if rows.offset is None else rows.offset * factors
    return replace(rows, scale=rows.scale * factors, offset=offset)


def _times(values: HostArray, factors: Floats) -> HostArray:
    return converted(converted(values, FLOAT32) * factors, values.dtype)


def _taken(parts: list[HostArray], order: NDArray[np.int64]) -> HostArray:
    """Return rows, copied as integers: numpy copies bfloat16 number by number."""
    whole = np.concatenate([part.view(f"u{part.itemsize}") for part in parts])
    return np.take(whole, order, axis=0).view(parts[0].dtype)
