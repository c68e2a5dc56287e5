"""How much of the memory the engine may use here: the largest share with which it starts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, replace

from quire.bench.machine import peak_rss_bytes
from quire.bench.server_process import running_server
from quire.core.errors import QuireError
from quire.executor.memory import plan_memory
from quire.models.memory import kv_bytes_per_token, loaded_bytes
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import AVAILABLE_SHARE, detect

STEP = 0.02
"""Shares are multiples of this."""


def largest(works: Callable[[float], bool], low: float, high: float) -> float | None:
    """The largest multiple of `STEP` between two shares for which `works` says True, if all below
    one that works do, too; None if there is none. The highest is tried first, then bisected."""
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
    """The largest `gpu_memory_utilization` that boots, tried with servers of their own.

    What is free now bounds it from above, so that no attempt can exhaust the machine: a server
    takes the pages of its KV cache only as requests fill them, and counts here as if all were
    taken. None where the engine starts with no share at all.
    """
    here = detect()
    free = AVAILABLE_SHARE * here.available_bytes

    def boots(share: float) -> bool:
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

    return largest(boots, STEP, min(1.0, free / here.memory_bytes))


def _cache_bytes(args: EngineArgs) -> int:
    """Bytes of the KV cache that the engine plans, at most."""
    config = resolve(args, detect()).config
    return plan_memory(
        config,
        runtime=0,
        weights=loaded_bytes(config),
        kv_bytes_per_token=kv_bytes_per_token(
            config.model, config.kv_cache_dtype, config.calculate_kv_scales
        ),
    ).kv_cache_bytes


def _share(steps: int) -> float:
    return round(steps * STEP, 4)
