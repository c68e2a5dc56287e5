"""Limits of this process's resources."""

from __future__ import annotations

import resource


def bound(what: int, most: int) -> None:
    """Limit a resource to `most`, or to the process's hard limit if that is lower."""
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, hard))
