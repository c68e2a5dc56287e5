"""cProfile around a block, and around a thread."""

from __future__ import annotations

import pstats
from pathlib import Path

import pytest

from quire.core.errors import InvalidRequestError
from quire.profile.python import ThreadProfile, cprofile, table


def busy(n: int = 1000) -> int:
    return sum(i for i in range(n))


def test_a_block(tmp_path: Path) -> None:
    with cprofile(tmp_path / "run.pstats") as stats:
        busy()
    assert "busy" in table(stats)
    assert "busy" in table(tmp_path / "run.pstats")


def test_a_decorator(tmp_path: Path) -> None:
    cprofile(tmp_path / "run.pstats")(busy)()
    assert "busy" in table(tmp_path / "run.pstats", top=5)


def test_a_thread(tmp_path: Path) -> None:
    profile = ThreadProfile()
    with pytest.raises(InvalidRequestError):
        profile.stop()
    profile.start()
    profile.start()
    busy()
    path = tmp_path / "thread.pstats"
    path.write_bytes(profile.stop())
    assert "busy" in table(path)
    assert pstats.Stats(str(path)).total_calls > 1000  # type: ignore[attr-defined]
