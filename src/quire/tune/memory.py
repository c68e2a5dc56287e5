"""Find the largest `gpu_memory_utilization` with which the engine starts here."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, replace

from quire.bench.machine import peak_rss_bytes
from quire.bench.serving.server_process import running_server
from quire.core.errors import QuireError
from quire.executor.memory import expected_plan
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import AVAILABLE_SHARE, detect

STEP = 0.02
"""Shares are multiples of this."""


def largest(works: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return the largest multiple of `STEP` between two shares that works; None if there is none.

    If a share works, all smaller ones must work too. The highest is tried first, then bisected.
    """
    first, last = math.ceil(low / STEP - 1e-9), math.floor(high / STEP + 1e-9)
    if first > last:
        return None
    if works(_share(last)):
        return _share(last)
    good = first - 1
    while last - good > 1:
        middle = (good + last) // 2
        good, last = (middle, last) if works(_share(middle)) else (good, middle)
    return _share(good) if good >= first else None


def largest_share(args: argparse.Namespace, start: EngineArgs) -> float | None:
    """Return the largest `gpu_memory_utilization` with which a server starts; None if none does.

    The free memory bounds it from above, and the whole KV cache counts as used although its pages
    fill later. So no attempt can exhaust the machine.
    """
    here = detect()
    free = AVAILABLE_SHARE * here.available_bytes

    def starts(share: float) -> bool:
        tried = replace(
            start,
            gpu_memory_utilization=share,
            kv_cache_memory_bytes=None,
            num_gpu_blocks_override=None,
        )
        try:
            cache = _cache_bytes(tried)
            before = peak_rss_bytes()
            with running_server(argparse.Namespace(**{**vars(args), **asdict(tried)})):
                return peak_rss_bytes() - before + cache <= here.available_bytes
        except QuireError:
            return False

    return largest(starts, STEP, min(1.0, free / here.memory_bytes))


def _cache_bytes(args: EngineArgs) -> int:
    return expected_plan(resolve(args, detect()).config).kv_cache_bytes


def _share(steps: int) -> float:
    return round(steps * STEP, 4)
