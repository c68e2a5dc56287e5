"""`GET /metrics`: the engine's counters in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest

from quire.metrics.prometheus import MetricsCollector
from quire.metrics.stats import EngineStats
from quire.profile.device_reading import Device
from quire.server.device_metrics import DeviceCollector


class Metrics:
    """The metrics of one engine, in a registry of its own, never the library's global one."""

    def __init__(self, stats: EngineStats, model_name: str, devices: Sequence[Device] = ()) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(MetricsCollector(stats, model_name))
        self._registry.register(DeviceCollector(devices))

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 1.0.0."""
        return generate_latest(self._registry)
