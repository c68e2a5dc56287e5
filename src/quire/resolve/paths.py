"""Folders that users name."""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import ConfigError


def expanded(name: str, param: str) -> Path:
    """Return a path with `~` and `~user` expanded.

    Raises:
        ConfigError: there is no such user; names `param`.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{param} is {name!r}: {str(error).rstrip('.')}.",
            fix="Write the path out.",
            param=param,
        ) from None
