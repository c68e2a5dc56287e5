"""`GET /metrics`: the engine's counters in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

from quire.metrics.families import exposition
from quire.metrics.prometheus import MetricsCollector
from quire.metrics.stats import EngineStats
from quire.profile.device_reading import Device
from quire.server.monitoring.device_metrics import DeviceCollector


class Metrics:
    """The metrics of one engine and its devices."""

    def __init__(self, stats: EngineStats, model_name: str, devices: Sequence[Device] = ()) -> None:
        self._stats = stats
        self._engine = MetricsCollector(stats, model_name)
        self._devices = DeviceCollector(devices)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 1.0.0."""
        return exposition(chain(self._engine.collect(), self._devices.collect()))

    def scrape(self) -> bytes:
        """Return the same as `render`, and count the answer and its time."""
        began = time.thread_time()
        text = self.render()
        self._stats.scrape_seconds += time.thread_time() - began
        return text
