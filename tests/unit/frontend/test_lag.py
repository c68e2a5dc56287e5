"""The event loop's lag is sampled while there is work, and not a moment longer."""

from __future__ import annotations

import asyncio
import time

import pytest

from quire.frontend import lag
from quire.frontend.lag import LoopLag
from quire.metrics.histogram import Histogram
from quire.metrics.stats import LATENCIES


async def test_a_held_up_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "INTERVAL", 0.001)
    histogram, busy = Histogram(LATENCIES), True
    sampler = LoopLag(histogram, lambda: busy)
    sampler.start()
    sampler.start()  # no second timer
    time.sleep(0.02)  # noqa: ASYNC251 - what a bad callback would do
    await asyncio.sleep(0.005)
    assert histogram.count >= 1
    assert histogram.total >= 0.015
    busy = False
    await asyncio.sleep(0.01)
    seen = histogram.count
    await asyncio.sleep(0.01)
    assert histogram.count == seen
    sampler.stop()
