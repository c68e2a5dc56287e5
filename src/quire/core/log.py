"""Logging to stderr: stdout is for the user's output."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from quire.core.errors import ConfigError
from quire.core.registry import did_you_mean
from quire.system import env

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the present `sys.stderr`, so that redirection works."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def setup_logging() -> None:
    """Show the log at the level of `QUIRE_LOG_LEVEL`, unless the application has its own handlers.

    Raises:
        ConfigError: the variable has an unknown level.
    """
    level = env.log_level()
    if level not in LEVELS:
        raise ConfigError(
            f"QUIRE_LOG_LEVEL is {level!r}; {did_you_mean(level, LEVELS)}", param="QUIRE_LOG_LEVEL"
        )
    logger = logging.getLogger("quire")
    logger.setLevel(level)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
