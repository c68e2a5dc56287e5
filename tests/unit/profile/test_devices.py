"""Devices say what they can, and None for the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quire.profile.cpu_device import Cpu
from quire.profile.device_reading import DeviceReading
from quire.profile.devices import devices
from quire.profile.nvml import Gpu, gpus
from tests.unit.profile.fake_machine import (
    GPU_ANSWERS,
    RAPL,
    FakeNvml,
    machine,
    set_ticks,
    write,
)

HWMON, ZONE = "sys/class/hwmon/", "sys/class/thermal/thermal_zone"


class Clock:
    """Seconds that pass when told."""

    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_what_one_reading_of_a_cpu_says(tmp_path: Path) -> None:
    machine(tmp_path)
    assert Cpu(tmp_path).read() == DeviceReading(
        name="Imaginary 9000",
        kind="cpu",
        energy_j=6.0,  # the package and the memory beside it; not its cores, not psys
        frequency_mhz=2500.0,
        memory_used=2048,
        memory_total=8192,
    )


def test_power_and_load_are_of_the_time_between_readings(tmp_path: Path) -> None:
    machine(tmp_path)
    clock = Clock()
    cpu = Cpu(tmp_path, clock)
    assert cpu.no_power is None
    assert (cpu.read().power_w, cpu.read().utilization) == (None, None)
    clock.now += 2.0
    write(tmp_path, {f"{RAPL}:0/energy_uj": 105_000_000})
    set_ticks(tmp_path, busy=130, idle=310)
    reading = cpu.read()
    assert reading.power_w == pytest.approx(50.0)
    assert reading.utilization == pytest.approx(0.75)


def test_an_energy_counter_that_begins_anew_counts_on(tmp_path: Path) -> None:
    machine(tmp_path)
    cpu = Cpu(tmp_path)
    first = cpu.read().energy_j
    assert first is not None
    for microjoules, joules in ((261_000_000, 256), (3_000_000, 260), (2_000_000, 521)):
        write(tmp_path, {f"{RAPL}:0/energy_uj": microjoules})
        assert cpu.read().energy_j == pytest.approx(first + joules)


def test_counters_that_may_not_be_read_say_so(tmp_path: Path) -> None:
    machine(tmp_path)
    counter = tmp_path / f"{RAPL}:0/energy_uj"
    counter.unlink()
    counter.mkdir()  # root, too, gets an OSError
    cpu = Cpu(tmp_path)
    assert "root" in cpu.no_power
    assert (cpu.read().energy_j, cpu.read().power_w) == (None, None)


@pytest.mark.parametrize(
    ("files", "celsius"),
    [
        ({f"{HWMON}hwmon1/name": "k10temp", f"{HWMON}hwmon1/temp1_input": 61500,
          f"{HWMON}hwmon1/temp3_input": 64250}, 64.25),
        ({f"{HWMON}hwmon0/name": "nvme", f"{HWMON}hwmon0/temp1_input": 90000}, None),
        ({f"{ZONE}2/type": "x86_pkg_temp",
          f"{ZONE}2/temp": 55000}, 55.0),
        ({f"{ZONE}0/type": "acpitz",
          f"{ZONE}0/temp": 20000}, None),
        ({f"{ZONE}0/type": "cpu-thermal",
          f"{ZONE}0/temp": "?"}, None),
    ],
)  # fmt: skip
def test_the_hottest_sensor_of_the_cpu(
    tmp_path: Path, files: dict[str, object], celsius: float | None
) -> None:
    write(tmp_path, files)
    assert Cpu(tmp_path).read().temperature_c == celsius


def test_cpufreq_knows_the_clock_better(tmp_path: Path) -> None:
    machine(tmp_path)
    for cpu, khz in enumerate((1_000_000, 4_000_000)):
        path = f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"
        write(tmp_path, {path: khz})
    assert Cpu(tmp_path).read().frequency_mhz == 2500.0


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    cpu = Cpu(tmp_path)
    assert cpu.no_power is not None
    assert cpu.read() == cpu.read() == DeviceReading(name="CPU", kind="cpu")


def test_what_a_gpu_says() -> None:
    gpu = Gpu(FakeNvml(1, GPU_ANSWERS), 0)
    assert gpu.no_power is None
    assert gpu.read() == DeviceReading(
        name="Imaginary G1",
        kind="gpu",
        power_w=250.5,
        energy_j=7.0,
        temperature_c=61,
        frequency_mhz=1980,
        utilization=0.75,
        memory_used=3,
        memory_total=10,
    )


def test_a_gpu_that_offers_nothing() -> None:
    gpu = Gpu(FakeNvml(1, {}), 0)
    assert gpu.no_power is not None
    assert gpu.read() == DeviceReading(name="GPU", kind="gpu")


@pytest.mark.parametrize(
    ("library", "found"),
    [
        (FakeNvml(2, GPU_ANSWERS), 2),
        (FakeNvml(0, {}), 0),
        (FakeNvml(2, GPU_ANSWERS, driver=False), 0),
        (None, 0),  # how Python marks a module that cannot be imported
    ],
)
def test_gpus_are_found_where_library_and_driver_are(
    monkeypatch: pytest.MonkeyPatch, library: FakeNvml | None, found: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert len(gpus()) == found
    assert len(devices()) == 1 + found


def test_this_machine_can_be_asked() -> None:
    for device in devices():
        reading = device.read()
        assert reading.name
        assert (device.no_power is None) == (reading.energy_j is not None)
        assert reading.memory_total is None or reading.memory_total > 0
