"""Devices on which torch computes: the CPU, or an accelerator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.ops.device import (
    Accelerator,
    Device,
    Event,
    HostDevice,
    Mirror,
    Present,
    PresentRows,
    Staged,
)
from quire.ops.graphs import Graph
from quire.ops.torch_ops.pinned import PinnedRing, Sent, SentRows

Types = frozenset[torch.dtype]


class CopyQueue(Protocol):
    """Copies to the device, in turn, beside what it computes."""

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        """Queue a copy from pinned memory that begins once the device has come to `after`; the
        event is its end."""


class TorchHost(HostDevice):
    """The CPU: tensors are views of the host's arrays."""

    torch = torch.device("cpu")
    lacks: Types = frozenset()

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return Present([torch.from_numpy(array) for array in arrays])

    def mirror(self, array: HostArray) -> Mirror:
        return PresentRows(torch.from_numpy(array))


class TorchAccelerator(Accelerator):
    """An accelerator that torch computes on.

    Subclasses say how memory is pinned, and how the device and the host wait for each other.

    Attributes:
        torch: where tensors are made.
        lacks: types that it has no tensors of.
    """

    torch: torch.device
    lacks: Types = frozenset()

    @abstractmethod
    def pinned(self, nbytes: int) -> Tensor:
        """Zeros in page-locked host memory, uint8 [nbytes], that take no more than those bytes
        and the rest of a page."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Make the device wait for `event` before later work; the host does not wait."""

    @abstractmethod
    def capture(self, work: Callable[[], object], reserve: int = 0) -> Graph:
        """Run the work once to record it, in memory that graphs share.

        Args:
            reserve: bytes in one piece that this memory has from its first graph on.
        """

    def borrowed(self, result: Tensor) -> Tensor:
        """Return what a capture computed, on the same memory, without keeping it from the graphs
        that follow."""
        return result

    @abstractmethod
    def seconds(self, work: Callable[[], object]) -> float:
        """Return how long the device takes for what `work` queues, by its own clock."""

    @abstractmethod
    def copies(self) -> CopyQueue:
        """Return a new queue."""

    @cached_property
    def ring(self) -> PinnedRing:
        """Return the memory from which host arrays are sent."""
        return PinnedRing(self)

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return Sent(self, arrays)

    def mirror(self, array: HostArray) -> Mirror:
        return SentRows(self, array)


def torch_device(device: Device) -> TorchHost | TorchAccelerator:
    """Return the device as torch's ops need it."""
    return device if isinstance(device, TorchAccelerator) else TorchHost()
