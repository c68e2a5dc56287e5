"""The low-rank adapters of a linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from quire.core.dtypes import DType, HostArray
from quire.ops.array import address

MAX_PARTS = 4
ENTRY = np.dtype([("a", np.uint64), ("b", np.uint64), ("rank", np.int64), ("scale", np.float64)])
"""`LoraEntry` in csrc/cpu/lora.h."""


class LoraTable:
    """One linear layer's adapters, each under its number; none has any to begin with.

    The layer may be several merged ones, whose outputs are adjacent: an adapter has an A
    and a B of its own for each, or nothing.

    Args:
        columns: of the layer's input, K.
        parts: columns of the merged layers' outputs; `MAX_PARTS` at most.
        adapters: how many numbers there are.
        dtype: of the adapters, and of what goes into the layer and comes out of it.

    Attributes:
        ends: the column behind each part.
        entries: structured [adapters, parts], where the kernels look; it never moves.
    """

    def __init__(self, columns: int, parts: Sequence[int], adapters: int, dtype: DType) -> None:
        if not 1 <= len(parts) <= MAX_PARTS:
            raise ValueError(f"{len(parts)} parts; wanted 1 to {MAX_PARTS}")
        self.columns = columns
        self.parts = tuple(parts)
        self.ends = list(accumulate(parts))
        self.dtype = dtype
        self.entries = np.zeros((adapters, len(parts)), ENTRY)
        self._held: dict[tuple[int, int], tuple[Any, Any]] = {}

    def set(self, adapter: int, part: int, a: HostArray, b: HostArray, scale: float) -> None:
        """Make `adapter` add scale · B · A · x to a part, from the next step on.

        Args:
            a: [R, K].
            b: [R, columns of the part]: B transposed.

        Raises:
            ValueError: they do not fit.
        """
        rank = a.shape[0]
        for name, given, width in (("a", a, self.columns), ("b", b, self.parts[part])):
            if not (
                given.dtype == self.dtype
                and given.flags.c_contiguous
                and given.shape == (rank, width)
            ):
                raise ValueError(
                    f"{name} is {given.dtype} {tuple(given.shape)}; "
                    f"wanted contiguous {self.dtype} {(rank, width)}"
                )
        self._held[adapter, part] = self._placed(a), self._placed(b)
        self.entries[adapter, part] = (address(a), address(b), rank, scale)

    def clear(self, adapter: int) -> None:
        """Make `adapter` add nothing, and release its arrays."""
        self.entries[adapter] = np.zeros((), ENTRY)
        for part in range(len(self.parts)):
            self._held.pop((adapter, part), None)

    def get(self, adapter: int, part: int) -> tuple[Any, Any, float] | None:
        """Return what `set` was given, where the provider computes."""
        held = self._held.get((adapter, part))
        return None if held is None else (*held, float(self.entries["scale"][adapter, part]))

    def _placed(self, values: HostArray) -> Any:
        """Return the values where the provider computes."""
        return values
