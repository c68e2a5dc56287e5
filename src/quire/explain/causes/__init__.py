"""One function per cause, with its name: evidence in, a suspect or None out."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from quire.explain.causes import (
    account,
    cache,
    card,
    clients,
    cores,
    front,
    kernels,
    machine,
    requests,
    stages,
    steps,
    system,
)
from quire.explain.causes.case import Case, Suspect
from quire.explain.report import Cause

_MODULES = (
    account, cache, card, clients, cores, front, kernels, machine, requests, stages, steps, system,
)  # fmt: skip
CAUSES: dict[Cause, Callable[[Case], Suspect | None]] = {
    name: getattr(module, name)
    for name in get_args(Cause)
    for module in _MODULES
    if hasattr(module, name)
}
"""All causes; of two with the same kind and share, the first stays the first."""

ON_CPUS: frozenset[Cause] = frozenset(
    {
        "few_threads", "too_many_threads", "affinity", "slow_clock", "huge_pages_off",
        "remote_memory", "forced_isa",
    }
)  # fmt: skip
"""Causes that slow a model only if CPUs compute it."""

WITHOUT_STEPS: frozenset[Cause] = frozenset(
    {
        "queueing", "cpu_quota", "busy_neighbour", "stopped", "traced", "python_debugging",
        "swapping", "memory_pressure", "open_files", "image_preparation", "tokenization",
        "http_overload", "tls", "scrapes", "aborted_requests", "refused_requests",
        "foreign_code", "blocked", "garbage_collection",
    }
)  # fmt: skip
"""Causes that a window without a step can prove: the core was starved, or got no requests."""
