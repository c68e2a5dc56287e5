"""Device sensors in the metrics; only readable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.profile.device_reading import Device, DeviceReading

_LABELS = ("device", "kind", "name")

Value = Callable[[DeviceReading], float | None]


class DeviceCollector(Collector):
    """Reads the devices when it is scraped.

    Power and load of a CPU are means since the scrape before; the first has none.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices

    def collect(self) -> Iterator[Metric]:
        readings = [device.read() for device in self._devices]
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"quire:device_{name}", text, labels=_LABELS)
            yield from _filled(gauge, readings, value)
        energy = CounterMetricFamily(
            "quire:device_energy_joules", "Energy since the counter began.", labels=_LABELS
        )
        yield from _filled(energy, readings, lambda r: r.energy_j)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, readings: list[DeviceReading], value: Value
) -> Iterator[Metric]:
    """The family, unless no device has a value for it."""
    for index, reading in enumerate(readings):
        number = value(reading)
        if number is not None:
            family.add_metric([str(index), reading.kind, reading.name], number)
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
