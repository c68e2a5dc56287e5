"""Devices among the metrics: what can be read, and nothing of what cannot."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from quire.metrics.stats import EngineStats
from quire.profile.cpu_device import Cpu
from quire.profile.nvml import Gpu
from quire.server.monitoring.metrics import Metrics
from tests.unit.profile.fake_machine import GPU_ANSWERS, FakeNvml, machine


def rendered(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Value by name and number of the device."""
    families = text_string_to_metric_families(metrics.render().decode())
    samples = [s for f in families for s in f.samples if s.name.startswith("quire:device_")]
    return {(s.name, s.labels["device"]): s.value for s in samples}


def test_each_device_says_what_it_can(tmp_path: Path) -> None:
    machine(tmp_path)
    nvml = FakeNvml(2, {"nvmlDeviceGetName": "bare"})
    devices = [Cpu(tmp_path), Gpu(FakeNvml(1, GPU_ANSWERS), 0), Gpu(nvml, 0)]
    metrics = Metrics(EngineStats(), "m", devices)
    assert rendered(metrics) == {
        ("quire:device_energy_joules_total", "0"): 6.0,
        ("quire:device_frequency_hertz", "0"): 2.5e9,
        ("quire:device_memory_used_bytes", "0"): 2048,
        ("quire:device_memory_bytes", "0"): 8192,
        ("quire:device_power_watts", "1"): 250.5,
        ("quire:device_energy_joules_total", "1"): 7.0,
        ("quire:device_temperature_celsius", "1"): 61,
        ("quire:device_frequency_hertz", "1"): 1.98e9,
        ("quire:device_utilization_ratio", "1"): 0.75,
        ("quire:device_memory_used_bytes", "1"): 3,
        ("quire:device_memory_bytes", "1"): 10,
    }
    assert rendered(metrics)["quire:device_power_watts", "0"] == 0.0, "the mean since the first"


def test_devices_that_say_nothing_leave_no_trace(tmp_path: Path) -> None:
    assert rendered(Metrics(EngineStats(), "m", [Cpu(tmp_path)])) == {}
    assert rendered(Metrics(EngineStats(), "m")) == {}
