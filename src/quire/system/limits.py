"""Limits of this process's resources."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path


def bound(what: int, most: int) -> None:
    """Limit a resource to `most`, or to the process's hard limit if that is lower."""
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, hard))


def raise_stack(least: int) -> int:
    """Raise the main thread's largest stack to `least` bytes, if the system allows it.

    Returns:
        The largest stack that it may have now, in bytes; at least `least`, unless it is refused.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= least:
        return max(soft, least)
    most = least if hard == resource.RLIM_INFINITY else min(hard, least)
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    return most


def confine(address_bytes: int) -> None:
    """Let a process that reads what clients send harm no other, whatever it takes."""
    bound(resource.RLIMIT_AS, address_bytes)
    bound(resource.RLIMIT_CORE, 0)  # core dumps would let a client fill the disk
    with suppress(OSError):  # the first process to be killed if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
