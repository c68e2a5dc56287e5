"""Host arrays sent to an accelerator: packed into pinned memory, and copied from there at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray

if TYPE_CHECKING:
    from quire.ops.device import Event
    from quire.ops.torch_ops.devices import TorchAccelerator

ALIGNMENT = 64
LEAST_BYTES = 2**15
"""Of half a ring."""
SENDS = 4
"""Copies of the largest size that half a ring holds: the steps that are in flight."""


class PinnedRing:
    """Pinned memory in two halves that take turns.

    ```
    [ sent | sent | free …  ]   written, part after part, as far as it goes
    [ sent | sent | sent    ]   written again once the device has come to the end of its copies
    ```
    """

    def __init__(self, device: TorchAccelerator) -> None:
        self._device = device
        self._size = 0
        self._halves: list[Tensor] = []
        self._ends: list[Event | None] = [None, None]
        self._turn = 0
        self._used = 0

    def send(self, parts: Sequence[HostArray], starts: Sequence[int], there: Tensor) -> None:
        """Queue one copy of `parts`, bytes that begin at `starts`, to bytes on the device."""
        half, begin = self._room(len(there))
        memory = half.numpy()
        for part, start in zip(parts, starts, strict=False):
            memory[begin + start : begin + start + len(part)] = part
        there.copy_(half[begin : begin + len(there)], non_blocking=True)

    def _room(self, nbytes: int) -> tuple[Tensor, int]:
        """Return the half that has room, and where it begins."""
        if SENDS * nbytes > self._size:
            self._device.finish()  # what it still copies from the smaller ring
            self._size = max(LEAST_BYTES, SENDS * -(-nbytes // ALIGNMENT) * ALIGNMENT)
            self._halves = [self._device.pinned(self._size) for _ in range(2)]
            self._ends, self._used = [None, None], 0
        if self._used + nbytes > self._size:
            self._ends[self._turn] = self._device.record()
            self._turn, self._used = 1 - self._turn, 0
            end = self._ends[self._turn]
            if end is not None:
                end.synchronize()
        begin = self._used
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self._halves[self._turn], begin


class Sent:
    """Arrays that cross in one copy; see `device.Staged`."""

    def __init__(self, device: TorchAccelerator, arrays: Sequence[HostArray]) -> None:
        self._ring = device.ring
        self._parts = [as_bytes(array) for array in arrays]
        sizes = [-(-len(part) // ALIGNMENT) * ALIGNMENT for part in self._parts]
        self._starts = [0, *accumulate(sizes)]
        self._bytes = torch.empty(self._starts[-1], dtype=torch.uint8, device=device.torch)
        self._there = tuple(
            as_tensor(self._bytes[start : start + len(part)], array)
            for array, part, start in zip(arrays, self._parts, self._starts, strict=False)
        )

    def send(self) -> Sequence[Tensor]:
        if len(self._bytes):
            self._ring.send(self._parts, self._starts, self._bytes)
        return self._there


class SentRows:
    """An array of which the first rows cross; see `device.Mirror`."""

    def __init__(self, device: TorchAccelerator, array: HostArray) -> None:
        self._ring = device.ring
        self._part = as_bytes(array)
        self._row_bytes = len(self._part) // max(len(array), 1)
        self._bytes = torch.empty(len(self._part), dtype=torch.uint8, device=device.torch)
        self._there = as_tensor(self._bytes, array)

    def send(self, rows: int) -> Tensor:
        nbytes = rows * self._row_bytes
        if nbytes:
            self._ring.send([self._part[:nbytes]], [0], self._bytes[:nbytes])
        return self._there[:rows]


def as_bytes(array: HostArray) -> HostArray:
    """Return the bytes of a C-contiguous array, on the same memory."""
    return array.reshape(-1).view(np.uint8)


def as_tensor(values: Tensor, array: HostArray) -> Tensor:
    """Return bytes on a device as a tensor of the array's type and shape."""
    dtype: Any = torch.from_numpy(array[:0]).dtype
    return values.view(dtype).view(array.shape)
