"""`GET /metrics`: the engine's counters and the devices' sensors in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Literal

from quire.metrics.families import Family, exposition
from quire.metrics.prometheus import MetricsCollector
from quire.metrics.stats import EngineStats
from quire.profile.device_reading import Device, DeviceReading

Value = Callable[[DeviceReading], float | None]


class Metrics:
    """The metrics of one engine and its devices.

    Power and load of a CPU are means since the scrape before; the first has none.
    """

    def __init__(self, stats: EngineStats, model_name: str, devices: Sequence[Device] = ()) -> None:
        self._stats = stats
        self._engine = MetricsCollector(stats, model_name)
        self._devices = devices

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 1.0.0."""
        return exposition(chain(self._engine.collect(), _of_devices(self._devices)))

    def scrape(self) -> bytes:
        """Return the same as `render`, and count the answer and its time."""
        began = time.thread_time()
        text = self.render()
        self._stats.scrape_seconds += time.thread_time() - began
        return text


def _of_devices(devices: Sequence[Device]) -> Iterator[Family]:
    """Yield the devices' sensors; only readable ones."""
    readings = [device.read() for device in devices]
    for kind, name, text, value in _SENSORS:
        family = Family(f"quire:device_{name}", kind, text)
        for index, reading in enumerate(readings):
            if (number := value(reading)) is not None:
                labels = {"device": str(index), "kind": reading.kind, "name": reading.name}
                family.add(labels, number)
        if family.samples:
            yield family


def _hertz(reading: DeviceReading) -> float | None:
    return None if reading.frequency_mhz is None else reading.frequency_mhz * 1e6


_SENSORS: tuple[tuple[Literal["gauge", "counter"], str, str, Value], ...] = (
    ("gauge", "power_watts", "Power: of a CPU the mean since the last scrape.",
     lambda r: r.power_w),
    ("gauge", "temperature_celsius", "Of the hottest sensor.", lambda r: r.temperature_c),
    ("gauge", "frequency_hertz", "Clock: of a CPU the mean of its cores.", _hertz),
    ("gauge", "utilization_ratio", "Load, from 0 to 1; of a CPU since the scrape before.",
     lambda r: r.utilization),
    ("gauge", "memory_used_bytes", "Memory in use; of a CPU the machine's.",
     lambda r: r.memory_used),
    ("gauge", "memory_bytes", "Memory in all.", lambda r: r.memory_total),
    ("counter", "energy_joules", "Energy since the counter began.", lambda r: r.energy_j),
)  # fmt: skip
