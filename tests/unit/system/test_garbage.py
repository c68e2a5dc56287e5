"""The garbage collector rests during imports; what the caller froze stays frozen."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from quire.system import garbage


class Collector:
    """What `garbage` calls of gc."""

    def __init__(self, frozen: int) -> None:
        self.frozen, self.calls = frozen, list[str]()

    def get_freeze_count(self) -> int:
        return self.frozen

    def __getattr__(self, name: str) -> object:
        if name in ("freeze", "unfreeze"):
            return lambda: self.calls.append(name)
        return getattr(gc, name)


@pytest.mark.parametrize(
    ("frozen", "imports", "calls"),
    [(0, True, ["freeze", "unfreeze"]), (0, False, []), (5, True, [])],
)
def test_what_was_imported_counts_as_old(
    monkeypatch: pytest.MonkeyPatch, frozen: int, imports: bool, calls: list[str]
) -> None:
    collector = Collector(frozen)
    monkeypatch.setattr(garbage, "gc", collector)
    with garbage.no_collection():
        assert not gc.isenabled()
        if imports:
            monkeypatch.setitem(sys.modules, "quire_imported", ModuleType("quire_imported"))
    assert gc.isenabled()
    assert collector.calls == calls
