"""Where ops compute: the CPU, or an accelerator with memory of its own and copies that take time.

Every array of a model and of its steps is made on `Ops.device`, by name: there is no default
device anywhere. What stays on the host says so: numpy arrays, `AttentionMetadata.query_start_loc`
and `seq_lens`, and what ops return to Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from quire.core.dtypes import HostArray
from quire.ops.array import Array


class Event(Protocol):
    """A position in a device's queue of work."""

    def synchronize(self) -> None:
        """Wait on the host until the device has come there."""


class Staged(Protocol):
    """Host arrays that are written anew for each step, and the same arrays on the device."""

    def send(self) -> Sequence[Array]:
        """Copy the host's arrays to the device; return the device's, valid until the next call.

        The device's lie where they did. The host's may be written again at once.
        """


class Mirror(Protocol):
    """A host array of which a step reads the first rows, and the same array on the device."""

    def send(self, rows: int) -> Array:
        """Copy the first rows to the device; see `Staged.send`."""


class Device(Protocol):
    """A device, and the host's ways to it.

    Attributes:
        is_host: it is the CPU; nothing is copied.
    """

    is_host: bool

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        """Return the device's copies of `arrays`, which cross in one copy."""

    def mirror(self, array: HostArray) -> Mirror:
        """Return the device's copy of an array, C-contiguous, of which some rows are sent."""

    def finish(self) -> None:
        """Wait on the host until all is computed."""


class HostDevice:
    """The CPU: the host's arrays are the device's."""

    is_host = True

    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        return Present(arrays)

    def mirror(self, array: HostArray) -> Mirror:
        return PresentRows(array)

    def finish(self) -> None:
        pass


class Present:
    """Arrays that are on their device already."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = tuple(arrays)

    def send(self) -> Sequence[Array]:
        return self._arrays


class PresentRows:
    """An array that is on its device already."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def send(self, rows: int) -> Array:
        found: Array = self._array[:rows]
        return found


class Accelerator(ABC):
    """A device with its own memory. It works through a queue while the host goes on."""

    is_host = False

    @abstractmethod
    def record(self) -> Event:
        """Return an event that comes after all work queued on the device so far."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Return the device's memory in bytes: used by any process, and in total."""

    @abstractmethod
    def stage(self, arrays: Sequence[HostArray]) -> Staged:
        """See `Device.stage`."""

    @abstractmethod
    def mirror(self, array: HostArray) -> Mirror:
        """See `Device.mirror`."""

    def finish(self) -> None:
        """Wait on the host until all is computed."""
        self.record().synchronize()


CPU = HostDevice()
