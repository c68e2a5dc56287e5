"""What the machine's devices report about themselves: power, energy, heat, clocks, load, memory.

Loads neither torch nor a driver's library before `devices` is called, so that every process can
ask. A quantity that a device, its driver or its permissions do not offer is None, never a guess
and never an exception.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """One device at one moment; None is what could not be read.

    Attributes:
        name: the product's name, as its maker gives it.
        power_w: watts: of a CPU, the mean since the reading before, hence none at first.
        energy_j: joules, cumulative; only differences mean something.
        temperature_c: of the hottest sensor, degrees Celsius.
        frequency_mhz: the mean over the cores now, or the clock of a GPU's multiprocessors.
        utilization: 0 to 1: of a CPU, of all cores since the reading before, hence none at first.
        memory_used, memory_total: bytes: of a CPU, the machine's memory.
    """

    name: str
    kind: Literal["cpu", "gpu"]
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    frequency_mhz: float | None = None
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


class Device(Protocol):
    """Something that computes, and can be asked how it is."""

    @property
    def no_power(self) -> str | None:
        """Why power and energy cannot be read, in words for the user; None where they can."""

    def read(self) -> DeviceReading:
        """Read it now: well below a millisecond a sensor."""
