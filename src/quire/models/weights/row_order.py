"""The order of a weight's packed rows, where it is not that of the checkpoint.

Some architectures turn elements 2i and 2i + 1 of a head together, others i and i + rotary_dim / 2.
Attention only takes products of q and k, so the order of a head's elements is free as long as both
have the same. Their rows are put into the order of the halves when they are packed. If RoPE turns
the end of a head (latent attention), that end is put in front: the kernels turn the beginning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import HostArray
from quire.core.quantized import QuantizedWeight
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


def in_order(parameter: Parameter, parts: Parts) -> Parts:
    """Return the parameter's rows in the order in which they are packed.

    Args:
        parts: its rows, one after the other.
    """
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


def bias_in_order(parameter: Parameter, bias: HostArray) -> HostArray:
    """Return the bias of the weight `parameter` in the same order."""
    order = row_order(parameter)
    return bias if order is None else _taken([bias], order)


def _taken(parts: list[HostArray], order: NDArray[np.int64]) -> HostArray:
    """Return rows, copied as integers: numpy copies bfloat16 number by number."""
    whole = np.concatenate([part.view(f"u{part.itemsize}") for part in parts])
    return np.take(whole, order, axis=0).view(parts[0].dtype)
