"""The low-rank adapters of a linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.ops.device import CPU
from quire.ops.torch_arrays import tensor

MAX_PARTS = 3
ENTRY = np.dtype([("a", np.uint64), ("b", np.uint64), ("rank", np.int64), ("scale", np.float64)])
"""`LoraEntry` in csrc/cpu/lora.h."""


class LoraTable:
    """One linear layer's adapters, each under its number; none has any to begin with.

    The layer may be several merged ones, whose outputs lie beside each other: an adapter has an A
    and a B of its own for each, or nothing.

    Args:
        columns: of the layer's input, K.
        parts: columns of the merged layers' outputs; `MAX_PARTS` at most.
        adapters: how many numbers there are.
        dtype: of the adapters, and of what goes into the layer and comes out of it.
        device: where all these are.

    Attributes:
        ends: the column behind each part.
        entries: structured [adapters, parts], where the kernels look; it never moves.
    """

    def __init__(
        self,
        columns: int,
        parts: Sequence[int],
        adapters: int,
        dtype: torch.dtype,
        device: torch.device = CPU.torch,
    ) -> None:
        if not 1 <= len(parts) <= MAX_PARTS:
            raise ValueError(f"{len(parts)} parts; wanted 1 to {MAX_PARTS}")
        self.columns = columns
        self.parts = tuple(parts)
        self.ends = list(accumulate(parts))
        self.dtype = dtype
        self.device = device
        self.entries = np.zeros((adapters, len(parts)), ENTRY)
        self._held: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def set(
        self, adapter: int, part: int, a: HostArray | Tensor, b: HostArray | Tensor, scale: float
    ) -> None:
        """From now on `adapter` adds scale · B · A · x to a part.

        Args:
            a: [R, K].
            b: [R, columns of the part]: B transposed.

        Raises:
            ValueError: they do not fit.
        """
        a, b, rank = tensor(a).to(self.device), tensor(b).to(self.device), a.shape[0]
        for name, given, width in (("a", a, self.columns), ("b", b, self.parts[part])):
            if not (
                given.dtype == self.dtype and given.is_contiguous() and given.shape == (rank, width)
            ):
                raise ValueError(
                    f"{name} is {given.dtype} {tuple(given.shape)}; "
                    f"wanted contiguous {self.dtype} {(rank, width)}"
                )
        self._held[adapter, part] = a, b
        self.entries[adapter, part] = (a.data_ptr(), b.data_ptr(), rank, scale)

    def clear(self, adapter: int) -> None:
        """From now on `adapter` adds nothing, and its tensors are let go."""
        self.entries[adapter] = np.zeros((), ENTRY)
        for part in range(len(self.parts)):
            self._held.pop((adapter, part), None)

    def get(self, adapter: int, part: int) -> tuple[Tensor, Tensor, float] | None:
        """What `set` was given."""
        held = self._held.get((adapter, part))
        return None if held is None else (*held, float(self.entries["scale"][adapter, part]))
