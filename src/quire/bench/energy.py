"""Power and energy of a measurement, if this machine's devices report them."""

from __future__ import annotations

import ipaddress
import sys
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from quire.bench.results.report import Row
from quire.profile.device_reading import Device
from quire.profile.devices import devices


class EnergyMeter:
    """Adds up the energy of its `with` blocks.

    It counts whole devices, including other programs on them. A block must be shorter than the
    wrap of a CPU's counter, about twenty minutes.
    """

    def __init__(
        self, found: Sequence[Device] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._devices = devices() if found is None else found
        self._clock = clock
        self._seconds = 0.0
        self._joules: list[float | None] = [0.0] * len(self._devices)
        self._start = 0.0
        self._before: list[float | None] = []

    def __enter__(self) -> EnergyMeter:
        self._before = self._read()
        self._start = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds += self._clock() - self._start
        for i, (before, after) in enumerate(zip(self._before, self._read(), strict=True)):
            sofar = self._joules[i]
            if sofar is None or before is None or after is None:
                self._joules[i] = None
            else:
                self._joules[i] = sofar + after - before

    def row(self, output_tokens: int) -> Row:
        """Return `{"energy": {…}}`: watts and joules per output token of the readable devices.

        Both are None if no device is readable; stderr says why.
        """
        known = [joules for joules in self._joules if joules is not None]
        names = [
            device.read().name
            for device, joules in zip(self._devices, self._joules, strict=True)
            if joules is not None
        ]
        if not known or not self._seconds or not output_tokens:
            for device in self._devices:
                if device.no_power is not None:
                    print(f"Power is unavailable: {device.no_power}.", file=sys.stderr)
            return {"energy": {"power_w": None, "j_per_output_token": None}}
        total = sum(known)
        return {
            "energy": {
                "power_w": total / self._seconds,
                "j_per_output_token": total / output_tokens,
                "devices": ", ".join(names),
            }
        }

    def _read(self) -> list[float | None]:
        return [device.read().energy_j for device in self._devices]


def is_here(url: str) -> bool:
    """Return whether a server at `url` runs on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
