"""Where ops compute: the CPU, or an accelerator with memory of its own and copies that take time.

Every tensor of a model and of its steps is made on `Ops.device`, by name: there is no default
device anywhere. What stays on the host says so: numpy arrays, `AttentionMetadata.query_start_loc`
and `seq_lens`, and what ops return to Python.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from quire.core.dtypes import HostArray


class Event(Protocol):
    """A place in what a device was told to do."""

    def synchronize(self) -> None:
        """Wait on the host until the device has come there."""


class CopyQueue(Protocol):
    """Copies to the device, in turn, beside what it computes."""

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        """Queue a copy from pinned memory that begins once the device has come to `after`; the
        event is its end."""


class Staged(Protocol):
    """Host arrays that are written anew for each step, and their tensors on the device."""

    def send(self) -> Sequence[Tensor]:
        """The tensors, with what the arrays hold now. They hold until the next call."""

    def wait(self) -> None:
        """Until what was sent is there, and the arrays may be written again."""


class Device(Protocol):
    """A device, and the host's ways to it.

    Attributes:
        torch: where tensors are made.
        is_host: it is the CPU; nothing is copied.
    """

    torch: torch.device
    is_host: bool

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
        """Zeros in host memory, from where `stage` can send them."""

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        """Tensors of these arrays, which are contiguous parts of those that `array` made."""

    def finish(self) -> None:
        """Wait on the host until all is computed."""


class HostDevice:
    """The CPU: tensors are views of the host's arrays."""

    torch = torch.device("cpu")
    is_host = True

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
        return np.zeros(shape, dtype)

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return _Views(arrays)

    def finish(self) -> None:
        pass


class _Views:
    """Arrays that are on their device already."""

    def __init__(self, arrays: Sequence[HostArray]) -> None:
        self._tensors = tuple(map(torch.from_numpy, arrays))

    def send(self) -> Sequence[Tensor]:
        return self._tensors

    def wait(self) -> None:
        pass


class Accelerator(ABC):
    """A device with memory of its own. It does what it is told in turn, while the host goes on.

    Subclasses say how memory is pinned, and how the device and the host wait for each other.
    """

    torch: torch.device
    is_host = False

    @abstractmethod
    def pinned(self, nbytes: int) -> Tensor:
        """Zeros in page-locked host memory, uint8 [nbytes], that take no more than those bytes
        and the rest of a page."""

    @abstractmethod
    def record(self) -> Event:
        """The place behind all that the device was told to compute so far."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Have the device compute what follows only once `event` has come; the host goes on."""

    @abstractmethod
    def copies(self) -> CopyQueue:
        """A new queue."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Bytes of the device's memory: in use, whoever uses them, and in all."""

    def finish(self) -> None:
        """Wait on the host until all is computed."""
        self.record().synchronize()

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> HostArray:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        array: HostArray = self.pinned(nbytes).numpy().view(dtype).reshape(shape)
        return array

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return _Sent(self, arrays)


class _Sent:
    """Arrays in pinned memory, copied among what the device computes."""

    def __init__(self, device: Accelerator, arrays: Sequence[HostArray]) -> None:
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


CPU = HostDevice()
