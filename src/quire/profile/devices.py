"""Device sensors: power, energy, temperature, clocks, load, memory."""

from __future__ import annotations

from quire.profile.cpu_device import Cpu
from quire.profile.device_reading import Device
from quire.profile.nvml import gpus


def devices() -> list[Device]:
    """Return the CPU and the GPUs that NVML finds, as new objects without an earlier reading."""
    return [Cpu(), *gpus()]
