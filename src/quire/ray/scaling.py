"""How many replicas a Ray Serve deployment needs, from their queues and KV caches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

TARGET = 0.8
"""Load of a replica that still has room for bursts."""
_NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
}
_SAMPLE = re.compile(r"^([a-z_:]+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)


def load_in(metrics: str) -> dict[str, float]:
    """Return a replica's load from the text of its /metrics, as one number.

    1 is a full KV cache. Once requests wait, the replica is full: twice as many requests as run
    are a load of 2.
    """
    found = dict.fromkeys(_NAMES.values(), 0.0)
    for name, number in _SAMPLE.findall(metrics):
        if name in found:
            found[name] += float(number)
    running, waiting, kv_usage = (found[name] for name in _NAMES.values())
    return {"load": 1.0 + waiting / max(1.0, running) if waiting else kv_usage}


def replicas_wanted(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas with which each has a load of `TARGET`; Ray Serve limits it.

    Args:
        context: Ray's `AutoscalingContext`, with `aggregated_metrics` of `load_in`.
    """
    loads: Mapping[Any, float] = (context.aggregated_metrics or {}).get("load", {})
    unsent = 1.0 if context.total_queued_requests else 0.0
    return math.ceil((sum(loads.values()) + unsent) / TARGET), {}
