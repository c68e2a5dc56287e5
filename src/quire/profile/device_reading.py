"""A reading of a device's sensors: power, energy, temperature, clocks, load, memory.

A value that a device, its driver or its permissions do not offer is None, never a guess or an
exception.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """One device at one moment; None is an unreadable value.

    Attributes:
        name: the product's name.
        power_w: watts; of a CPU, the mean since the previous reading, so None at first.
        energy_j: joules, cumulative; only differences have a meaning.
        temperature_c: degrees Celsius of the hottest sensor.
        frequency_mhz: mean over a CPU's cores, or clock of a GPU's multiprocessors.
        utilization: 0 to 1; of a CPU, since the previous reading, so None at first.
        memory_used, memory_total: bytes; of a CPU, the machine's memory.
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
    """A device with sensors."""

    @property
    def no_power(self) -> str | None:
        """Return why power and energy cannot be read; None if they can."""

    def read(self) -> DeviceReading:
        """Read all sensors, each in well below a millisecond."""
