"""The machine's devices, as they report about themselves."""

from __future__ import annotations

from quire.profile.cpu_device import Cpu
from quire.profile.device_reading import Device
from quire.profile.nvml import gpus


def devices() -> list[Device]:
    """The CPU, then the GPUs that NVML finds; each call gives new ones, with no reading before."""
    return [Cpu(), *gpus()]
