"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# A busy machine is no fault of what is tested.
hypothesis.settings.register_profile("quire", deadline=None)
hypothesis.settings.load_profile("quire")

# Several pytest workers share the cores; a thread pool in each would have them wait in turns.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, which some are about.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", metavar="DIR", help="write the dashboard's pictures into this folder"
    )


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared models and tokenizers beside the checkout; skips where absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "models").is_dir():
        pytest.skip("the shared folder with real models is not beside this checkout")
    return folder
