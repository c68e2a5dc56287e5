"""The command that starts an engine core."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.resolve.arguments import EngineArgs

CORE_COMMAND = (sys.executable, "-m", "quire.engine.process")
RAY_COMMAND = (sys.executable, "-m", "quire.ray.core")
"""Stands for a core on a machine that Ray chooses."""


def core_command(args: EngineArgs) -> tuple[str, ...]:
    """Return the command for a core on this machine, or on one that Ray chooses."""
    on_ray = len(args.replicas) > 1 and args.data_parallel_backend == "ray"
    return RAY_COMMAND if on_ray else CORE_COMMAND
