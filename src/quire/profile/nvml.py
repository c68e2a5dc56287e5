"""GPUs through NVML, NVIDIA's management library; needs `quire[nvml]` and a driver."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from quire.profile.device_reading import DeviceReading


def gpus() -> list[Gpu]:
    """Return every GPU that NVML shows; empty without library, driver or GPU."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return []
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        return [Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    except nvml.NVMLError:
        return []


class Gpu:
    """One GPU.

    Args:
        nvml: the initialized module `pynvml`, or a stand-in with its functions.
        handle: NVML's for the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        name = self._ask(nvml.nvmlDeviceGetName)
        self._name = name.decode() if isinstance(name, bytes) else name or "GPU"

    @property
    def no_power(self) -> str | None:
        if self._ask(self._nvml.nvmlDeviceGetPowerUsage) is None:
            return f"NVML does not show the power of {self._name}"
        return None

    def read(self) -> DeviceReading:
        nvml = self._nvml
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        millijoules = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
        load = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        return DeviceReading(
            name=self._name,
            kind="gpu",
            power_w=None if milliwatts is None else milliwatts / 1e3,
            energy_j=None if millijoules is None else millijoules / 1e3,
            temperature_c=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            frequency_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            utilization=None if load is None else load.gpu / 100,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
        )

    @property
    def highest_mhz(self) -> float | None:
        """Return the highest clock of the multiprocessors."""
        return self._ask(self._nvml.nvmlDeviceGetMaxClockInfo, self._nvml.NVML_CLOCK_SM)  # type: ignore[no-any-return]

    def slowed_seconds(self) -> tuple[float, float]:
        """Return the seconds for which heat, and the power limit, have lowered the clock so far."""
        nvml = self._nvml
        policies = (nvml.NVML_PERF_POLICY_THERMAL, nvml.NVML_PERF_POLICY_POWER)
        found = [self._ask(nvml.nvmlDeviceGetViolationStatus, policy) for policy in policies]
        hot, capped = (0.0 if each is None else each.violationTime / 1e9 for each in found)
        return hot, capped

    def processes(self) -> set[int]:
        """Return the processes that compute on it."""
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return {process.pid for process in found or ()}

    def loads(self) -> dict[int, float]:
        """Return the share of the latest seconds in which each process computed, 0 to 1."""
        samples: dict[int, list[int]] = {}
        for each in self._ask(self._nvml.nvmlDeviceGetProcessUtilization, 0) or ():
            samples.setdefault(each.pid, []).append(each.smUtil)
        return {pid: sum(loads) / len(loads) / 100 for pid, loads in samples.items()}

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return NVML's answer; None if this GPU or its mode does not support the query."""
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None
