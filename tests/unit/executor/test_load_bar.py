"""The bar of a loading model."""

import io
import logging
import threading

import pytest

from quire.core.log import setup_logging
from quire.executor.load_bar import load_bar


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    setup_logging()
    threads = threading.active_count()
    with load_bar() as progress:
        assert "Loading the model   0%" in screen.getvalue()  # before anything is known
        progress(0, 3 * 10**9)
        logging.getLogger("quire.test").warning("a line")
        progress(3 * 10**9, 3 * 10**9)
    shown = screen.getvalue()
    assert "Loading 3.00 GB   0% |" in shown
    assert "a line\n" in shown
    assert shown.rpartition("\n")[2].rpartition("\r")[2].strip() == ""  # it is gone at the end
    assert threading.active_count() == threads


def test_silent_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with load_bar() as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_one_of_several_ranks_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    with load_bar(shown=False) as progress:
        assert progress is None
    assert screen.getvalue() == ""
