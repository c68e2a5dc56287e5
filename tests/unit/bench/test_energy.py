"""Joules of what was measured, and nothing made up where they cannot be read."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from quire.bench.energy import EnergyMeter, is_here
from quire.bench.results.report import print_table
from quire.profile.device_reading import DeviceReading


class FakeDevice:
    """Gives each of `joules` once, then the last again."""

    def __init__(self, name: str, *joules: float | None) -> None:
        self._name = name
        self._joules = list(joules)
        self.no_power = None if None not in joules else f"{name} keeps it to itself"

    def read(self) -> DeviceReading:
        joules = self._joules.pop(0) if len(self._joules) > 1 else self._joules[0]
        return DeviceReading(name=self._name, kind="cpu", energy_j=joules)


def clock(*moments: float) -> Iterator[float]:
    yield from moments


def test_what_lies_between_two_measurements_does_not_count() -> None:
    ticks = clock(10.0, 12.0, 50.0, 52.0)
    meter = EnergyMeter([FakeDevice("cpu", 100.0, 300.0, 9000.0, 9200.0)], lambda: next(ticks))
    for _ in range(2):
        with meter:
            pass
    assert meter.row(output_tokens=80) == {
        "energy": {"power_w": 100.0, "j_per_output_token": 5.0, "devices": "cpu"}
    }


def test_devices_are_added_up_where_they_tell() -> None:
    ticks = clock(0.0, 10.0)
    meter = EnergyMeter(
        [FakeDevice("cpu", 0.0, 100.0), FakeDevice("shy", None), FakeDevice("gpu", 5.0, 405.0)],
        lambda: next(ticks),
    )
    with meter:
        pass
    assert meter.row(100)["energy"] == {
        "power_w": 50.0,
        "j_per_output_token": 5.0,
        "devices": "cpu, gpu",
    }


def test_unavailable_is_said_and_why() -> None:
    meter = EnergyMeter([FakeDevice("shy", None)])
    with meter:
        pass
    row = meter.row(100)
    assert row == {"energy": {"unavailable": "shy keeps it to itself"}}
    out = io.StringIO()
    print_table("bench", {**row, "repetitions": 1, "min": {}, "max": {}}, out)
    assert "energy.unavailable  shy keeps it to itself" in out.getvalue()


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost", True),
        ("http://10.0.0.7:8000", False),
        ("http://models.internal", False),
    ],
)
def test_only_this_machines_energy_counts(url: str, here: bool) -> None:
    assert is_here(url) == here
