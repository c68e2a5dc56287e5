"""The log goes to stderr, once, at the level that the environment names."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from quire.core import log
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


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Have stderr be a pipe; its two ends."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(writer, "w", buffering=1) as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        yield reader, writer
    os.close(reader)


def everything(reader: int) -> str:
    parts = list[bytes]()
    with suppress(BlockingIOError):
        while part := os.read(reader, 65536):
            parts.append(part)
    return b"".join(parts).decode()


def test_a_log_that_nobody_reads_loses_lines_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fresh_program() as logger, piped(monkeypatch) as (reader, writer):
        setup_logging()
        number = 0
        while number < 5000:  # more than a pipe holds
            number += 1
            logger.info("line %d %s", number, "x" * 100)
        kept = everything(reader).splitlines()
        assert 100 < len(kept) < 1000
        logger.info("z" * 10_000)
        lost, line = everything(reader).splitlines()
        assert lost == f"WARNING {number - len(kept)} lines of the log were lost: nobody read it."
        assert line.endswith("z" * 10_000)
        logger.info("and so on")
        assert everything(reader).endswith(" and so on\n")
        assert os.get_blocking(writer)  # other programs may share it


@pytest.mark.parametrize("owner", ["the user", "another"])
def test_a_terminal_that_nobody_reads_stops_nobody(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object) -> int:
        raise PermissionError

    if owner == "another":
        monkeypatch.setattr(log.os, "open", refused)
    with fresh_program() as logger, monkeypatch.context() as patched:
        master, slave = os.openpty()
        os.set_blocking(master, False)
        with open(slave, "w", buffering=1) as stream:
            patched.setattr(sys, "stderr", stream)
            setup_logging()

            def write() -> None:
                for number in range(3000):  # more than a terminal holds
                    logger.info("line %d %s", number, "x" * 777)

            writer = Thread(target=write, daemon=True)
            writer.start()
            writer.join(30)
            try:
                assert not writer.is_alive()
                assert len(everything(master).splitlines()) < 1000
                time.sleep(0.2)  # a blocked write ends
                logger.info("and so on")
                *_, lost, line = everything(master).splitlines()
            finally:
                os.close(master)  # which ends the thread
        assert lost.startswith("WARNING ")
        assert line.endswith(" and so on")


def test_a_stderr_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_program() as logger:
        setup_logging()
        for text in ("first", "second"):
            with piped(monkeypatch) as (reader, _):
                logger.info(text)
                assert everything(reader).endswith(f"{text}\n")


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
