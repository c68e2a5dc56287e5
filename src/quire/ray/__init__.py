"""Ray starts the machines of an engine (`nodes`) and replicas of a server (`replica`); needs
`quire[ray]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["build_app"]


def build_app(args: Mapping[str, Any]) -> Any:
    """Return a Ray Serve application whose replicas are Quire servers.

    Args:
        args: flags of `quire serve`, as in its configuration file. `num_threads` is required:
            so many CPUs Ray gives each replica.

    Raises:
        ConfigError: a flag is missing, unknown or wrong.
    """
    from quire.ray.replica import application

    return application(args)
