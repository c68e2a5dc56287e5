"""The CPU's sensors in Linux: RAPL energy, temperature, clocks, load and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean

from quire.profile.device_reading import DeviceReading
from quire.system.proc import fields, listed, text

_SENSORS = {"coretemp", "k10temp", "zenpower", "cpu_thermal"}
"""The hwmon drivers that measure a CPU."""
_ZONES = ("x86_pkg_temp", "cpu")
"""Prefixes of the types of a CPU's thermal zones."""


class Cpu:
    """All sockets together, and the machine's memory.

    Args:
        root: folder that contains `proc` and `sys`.
        clock: returns seconds, for the power between two readings.
    """

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._energy = [_EnergyCounter(zone) for zone in _energy_zones(root)]
        self._joules: float | None = None
        self._read_at = 0.0
        self._ticks: tuple[int, int] | None = None
        self._name = self._cpuinfo("model name") or self._cpuinfo("Model") or "CPU"

    @property
    def no_power(self) -> str | None:
        if not self._energy:
            return "the kernel shows no RAPL counters here (most virtual machines have none)"
        if any(counter.read() is None for counter in self._energy):
            return "only root may read the energy counters in /sys/class/powercap"
        return None

    def read(self) -> DeviceReading:
        now = self._clock()
        joules = self._read_energy()
        power = None
        if joules is not None and self._joules is not None and now > self._read_at:
            power = (joules - self._joules) / (now - self._read_at)
        self._joules, self._read_at = joules, now
        used, total = self._memory()
        return DeviceReading(
            name=self._name,
            kind="cpu",
            power_w=power,
            energy_j=joules,
            temperature_c=self._temperature(),
            frequency_mhz=self._frequency(),
            utilization=self._utilization(),
            memory_used=used,
            memory_total=total,
        )

    def _read_energy(self) -> float | None:
        """Return joules of all sockets; None if one is missing, because a part would look like the
        total."""
        joules = [counter.read() for counter in self._energy]
        known = [j for j in joules if j is not None]
        return sum(known) if known and len(known) == len(joules) else None

    def _temperature(self) -> float | None:
        found: list[float] = []
        for sensor in listed(self._root, "sys/class/hwmon/hwmon*"):
            if text(sensor / "name") in _SENSORS:
                found += _numbers(sensor.glob("temp*_input"))
        if not found:
            for zone in listed(self._root, "sys/class/thermal/thermal_zone*"):
                if text(zone / "type").startswith(_ZONES):
                    found += _numbers([zone / "temp"])
        return max(found) / 1e3 if found else None

    def _frequency(self) -> float | None:
        khz = _numbers(
            listed(self._root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
        )
        if khz:
            return fmean(khz) / 1e3
        mhz = [float(value) for value in self._cpuinfo_all("cpu MHz")]
        return fmean(mhz) if mhz else None

    def _utilization(self) -> float | None:
        """Return the share of ticks since the last reading that were not idle."""
        before = self._ticks
        words = text(self._root / "proc/stat").partition("\n")[0].split()
        if len(words) < 6 or words[0] != "cpu":
            return None
        # user nice system idle iowait irq softirq steal; guests' time is in user and nice already.
        ticks = [int(word) for word in words[1:9]]
        self._ticks = idle, total = ticks[3] + ticks[4], sum(ticks)
        if before is None or total <= before[1]:
            return None
        return min(1.0, max(0.0, 1 - (idle - before[0]) / (total - before[1])))

    def _memory(self) -> tuple[int | None, int | None]:
        """Return (used, total) bytes; reclaimable page cache is not used."""
        found = fields(text(self._root / "proc/meminfo"))  # kB
        if "MemTotal" not in found:
            return None, None
        total = found["MemTotal"] * 1024
        return (total - found["MemAvailable"] * 1024 if "MemAvailable" in found else None), total

    def _cpuinfo(self, key: str) -> str | None:
        return next(self._cpuinfo_all(key), None)

    def _cpuinfo_all(self, key: str) -> Iterator[str]:
        """Return the values of `key` for each processor."""
        for line in text(self._root / "proc/cpuinfo").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                yield value.strip()


class _EnergyCounter:
    """One RAPL counter, continued when the hardware's 32 bits overflow.

    It may wrap once between two readings, which takes about twenty minutes at 200 W.
    """

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = _number(zone / "max_energy_range_uj") or 0.0
        self._last: float | None = None
        self._wrapped = 0.0

    def read(self) -> float | None:
        """Return joules; None if the counter is unreadable."""
        now = _number(self._file)
        if now is None:
            return None
        if self._last is not None and now < self._last:
            self._wrapped += self._range
        self._last = now
        return (now + self._wrapped) / 1e6


def _energy_zones(root: Path) -> list[Path]:
    """Return RAPL's zones that do not contain each other: packages, and memory.

    AMD's counters have the same name. Cores and graphics are in their package; "psys" holds
    everything and is on few machines.
    """
    zones = listed(root, "sys/class/powercap/intel-rapl:*")
    return [zone for zone in zones if text(zone / "name").startswith(("package", "dram"))]


def _number(path: Path) -> float | None:
    try:
        return float(text(path))
    except ValueError:
        return None


def _numbers(paths: Iterable[Path]) -> list[float]:
    """Return the numbers in those files that have one."""
    return [number for path in paths if (number := _number(path)) is not None]
