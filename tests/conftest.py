"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared models and tokenizers beside the checkout; skips where absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "models").is_dir():
        pytest.skip("the shared folder with real models is not beside this checkout")
    return folder
