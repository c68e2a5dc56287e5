"""A counter without zeros."""

from __future__ import annotations

from quire.system.tally import Tally


def test_names_are_forgotten_at_zero() -> None:
    tally = Tally[str]()
    tally.change("a", 2)
    tally.change("b", 1)
    tally.change("a", -1)
    tally.change("b", -1)
    assert tally == {"a": 1}
    assert [*tally] == ["a"]
    assert tally["c"] == 0
