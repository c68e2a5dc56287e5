"""Device sensors in the metrics; only readable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quire.metrics.families import Family
from quire.profile.device_reading import Device, DeviceReading

Value = Callable[[DeviceReading], float | None]


class DeviceCollector:
    """Reads the devices when it is scraped.

    Power and load of a CPU are means since the scrape before; the first has none.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices

    def collect(self) -> Iterator[Family]:
        readings = [device.read() for device in self._devices]
        for name, text, value in _GAUGES:
            gauge = Family(f"quire:device_{name}", "gauge", text)
            yield from _filled(gauge, readings, value)
        text = "Energy since the counter began."
        energy = Family("quire:device_energy_joules", "counter", text)
        yield from _filled(energy, readings, lambda r: r.energy_j)


def _filled(family: Family, readings: list[DeviceReading], value: Value) -> Iterator[Family]:
    """Yield the family with the devices' values, unless there are none."""
    for index, reading in enumerate(readings):
        number = value(reading)
        if number is not None:
            labels = {"device": str(index), "kind": reading.kind, "name": reading.name}
            family.add(labels, number)
    if family.samples:
        yield family


def _hertz(reading: DeviceReading) -> float | None:
    return None if reading.frequency_mhz is None else reading.frequency_mhz * 1e6


_GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("power_watts", "Power: of a CPU the mean since the last scrape.", lambda r: r.power_w),
    ("temperature_celsius", "Of the hottest sensor.", lambda r: r.temperature_c),
    ("frequency_hertz", "Clock: of a CPU the mean of its cores.", _hertz),
    ("utilization_ratio", "Load, from 0 to 1; of a CPU since the scrape before.",
     lambda r: r.utilization),
    ("memory_used_bytes", "Memory in use; of a CPU the machine's.", lambda r: r.memory_used),
    ("memory_bytes", "Memory in all.", lambda r: r.memory_total),
)  # fmt: skip
