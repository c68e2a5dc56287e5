"""Trees like those of /proc and /sys, and a library like NVML, with whatever a test needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

RAPL = "sys/class/powercap/intel-rapl"


def write(root: Path, files: dict[str, object]) -> None:
    """Write each value to the file of its name below `root`."""
    for name, value in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")


def set_ticks(root: Path, busy: int, idle: int) -> None:
    """The machine's time since it started, half of `busy` in the kernel, half of `idle` waiting."""
    fields = (busy - busy // 2, 0, busy // 2, idle - idle // 2, idle // 2, 0, 0, 0, 0, 0)
    write(root, {"proc/stat": f"cpu  {' '.join(map(str, fields))}\ncpu0 1 1 1 1 1 1 1 1 0 0"})


def machine(root: Path) -> None:
    """Two processors, one socket with RAPL, memory beside it, and a psys that holds both."""
    processor = "model name\t: Imaginary 9000\ncpu MHz\t\t: {}\n"
    write(
        root,
        {
            "proc/cpuinfo": "\n".join(processor.format(mhz) for mhz in (2000, 3000)),
            "proc/meminfo": "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 6 kB",
            f"{RAPL}:0/name": "package-0",
            f"{RAPL}:0/energy_uj": 5_000_000,
            f"{RAPL}:0/max_energy_range_uj": 262_000_000,
            f"{RAPL}:0:0/name": "core",
            f"{RAPL}:0:0/energy_uj": 77_000_000,
            f"{RAPL}:0:1/name": "dram",
            f"{RAPL}:0:1/energy_uj": 1_000_000,
            f"{RAPL}:0:1/max_energy_range_uj": 65_000_000,
            f"{RAPL}:1/name": "psys",
            f"{RAPL}:1/energy_uj": 99_000_000,
        },
    )
    set_ticks(root, busy=100, idle=300)


class NVMLError(Exception):
    """As the library's."""


class FakeNvml:
    """NVML with GPUs that answer what `answers` holds for a function, and refuse the rest."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1

    def __init__(self, gpus: int, answers: dict[str, object], *, driver: bool = True) -> None:
        self._gpus, self._answers, self._driver = gpus, answers, driver

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._driver:
            raise NVMLError("driver not loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def __getattr__(self, function: str) -> object:
        def answer(_handle: int, *_arguments: object) -> object:
            if function not in self._answers:
                raise NVMLError("not supported")
            return self._answers[function]

        return answer


GPU_ANSWERS: dict[str, object] = {
    "nvmlDeviceGetName": b"Imaginary G1",
    "nvmlDeviceGetPowerUsage": 250_500,
    "nvmlDeviceGetTotalEnergyConsumption": 7_000,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetClockInfo": 1_980,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=20),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3, total=10, free=7),
}
