"""Power and energy of a measurement, if this machine's devices report them."""

from __future__ import annotations

import ipaddress
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
        self._joules: dict[str, float] = {}

    def __enter__(self) -> EnergyMeter:
        self._before, self._start = self._read(), self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        now, after = self._clock(), self._read()
        known = after.keys() & self._before.keys()
        if self._seconds:  # a device that was silent once would give a part
            known &= self._joules.keys()
        self._joules = {
            name: self._joules.get(name, 0.0) + joules - self._before[name]
            for name, joules in after.items()
            if name in known
        }
        self._seconds += now - self._start

    def row(self, output_tokens: int) -> Row:
        """Return `{"energy": {…}}`: watts and joules per output token of the readable devices.

        If no device is readable, `unavailable` says why.
        """
        if not self._joules or not self._seconds or not output_tokens:
            reasons = "; ".join(filter(None, (device.no_power for device in self._devices)))
            return {"energy": {"unavailable": reasons or "nothing was measured"}}
        total = sum(self._joules.values())
        return {
            "energy": {
                "power_w": total / self._seconds,
                "j_per_output_token": total / output_tokens,
                "devices": ", ".join(name.partition(" ")[2] for name in self._joules),
            }
        }

    def _read(self) -> dict[str, float]:
        """Return the joules of each readable device, by its number and name."""
        readings = (device.read() for device in self._devices)
        return {
            f"{number} {reading.name}": reading.energy_j
            for number, reading in enumerate(readings)
            if reading.energy_j is not None
        }


def is_here(url: str) -> bool:
    """Return whether a server at `url` runs on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
