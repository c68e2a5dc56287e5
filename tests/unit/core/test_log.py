"""The log goes to stderr, once, at the level that the environment names."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quire.core.errors import ConfigError
from quire.core.log import setup_logging


@contextmanager
def fresh_program() -> Iterator[logging.Logger]:
    """The logger while nobody has added a handler, not even pytest."""
    logger, root = logging.getLogger("quire"), logging.getLogger()
    level, handlers, root_handlers = logger.level, logger.handlers, root.handlers
    logger.handlers, root.handlers = [], []
    try:
        yield logger
    finally:
        logger.handlers, root.handlers = handlers, root_handlers
        logger.setLevel(level)


def test_one_handler_that_follows_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_program() as logger:
        setup_logging()
        setup_logging()
        assert len(logger.handlers) == 1
        logging.getLogger("quire.engine").info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("INFO ")
    assert err.endswith(" hello\n")


def test_an_application_s_handlers_are_kept() -> None:
    with fresh_program() as logger:
        logging.getLogger().handlers.append(logging.NullHandler())
        setup_logging()
        assert logger.handlers == []


def test_the_level_is_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_program() as logger:
        monkeypatch.setenv("QUIRE_LOG_LEVEL", "warning")
        setup_logging()
        assert logger.level == logging.WARNING
        monkeypatch.setenv("QUIRE_LOG_LEVEL", "WARN")
        with pytest.raises(ConfigError, match="did you mean WARNING"):
            setup_logging()
