"""Choices are the same whether torch is installed or not."""

from __future__ import annotations

import pytest

from quire.core import extras


@pytest.fixture(autouse=True)
def torch_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "installed", lambda module: True)
