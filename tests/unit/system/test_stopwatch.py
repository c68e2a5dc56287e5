"""Pieces of time that touch."""

from __future__ import annotations

from quire.system.stopwatch import Stopwatch


def test_laps_add_up_to_the_whole() -> None:
    now = [10.0]
    watch = Stopwatch(lambda: now[0])
    for name, until in (("a", 11.0), ("b", 11.5), ("a", 14.0)):
        now[0] = until
        watch.lap(name)
    assert watch.seconds == {"a": 3.5, "b": 0.5}


def test_a_split_belongs_to_no_name_until_it_is_added() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    now[0] = 2.0
    assert watch.split() == 2.0
    now[0] = 3.0
    watch.lap("rest")
    watch.add("rest", 0.25)
    watch.add("model", 1.5)
    assert watch.seconds == {"rest": 1.25, "model": 1.5}
