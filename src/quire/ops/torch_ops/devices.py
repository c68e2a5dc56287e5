"""Devices on which torch computes: the CPU, or an accelerator."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.ops.device import Accelerator, Device, Event, HostDevice, Present, Staged
from quire.ops.graphs import Graph


class CopyQueue(Protocol):
    """Copies to the device, in turn, beside what it computes."""

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        """Queue a copy from pinned memory that begins once the device has come to `after`; the
        event is its end."""


class TorchHost(HostDevice):
    """The CPU: tensors are views of the host's arrays."""

    torch = torch.device("cpu")

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return Present([torch.from_numpy(array) for array in arrays])


class TorchAccelerator(Accelerator):
    """An accelerator that torch computes on.

    Subclasses say how memory is pinned, and how the device and the host wait for each other.

    Attributes:
        torch: where tensors are made.
    """

    torch: torch.device

    @abstractmethod
    def pinned(self, nbytes: int) -> Tensor:
        """Zeros in page-locked host memory, uint8 [nbytes], that take no more than those bytes
        and the rest of a page."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Make the device wait for `event` before later work; the host does not wait."""

    @abstractmethod
    def capture(self, work: Callable[[], object]) -> Graph:
        """Run the work once to record it; its results stay in memory that the graph owns."""

    @abstractmethod
    def copies(self) -> CopyQueue:
        """Return a new queue."""

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        array: HostArray = self.pinned(nbytes).numpy().view(dtype).reshape(shape)
        return array

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return _Sent(self, arrays)


class _Sent:
    """Arrays in pinned memory, copied among what the device computes."""

    def __init__(self, device: TorchAccelerator, arrays: Sequence[HostArray]) -> None:
        self._device = device
        self._host = tuple(map(torch.from_numpy, arrays))
        self._there = tuple(
            torch.empty(host.shape, dtype=host.dtype, device=device.torch) for host in self._host
        )
        self._sent: Event | None = None

    def send(self) -> Sequence[Tensor]:
        for to, source in zip(self._there, self._host, strict=True):
            to.copy_(source, non_blocking=True)
        self._sent = self._device.record()
        return self._there

    def wait(self) -> None:
        if self._sent is not None:
            self._sent.synchronize()


def torch_device(device: Device) -> TorchHost | TorchAccelerator:
    """Return the device as torch's ops need it."""
    return device if isinstance(device, TorchAccelerator) else TorchHost()
