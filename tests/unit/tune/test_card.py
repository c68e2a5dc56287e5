"""Values for a GPU's kernels are tried before they are timed."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.ops.triton.tuning import CardTuning, Chosen
from quire.tune.kernels.card import Bench, confirmed, sound
from quire.tune.kernels.search import Found, Subject, Values


class HostOps:
    @staticmethod
    def numpy(values: Any) -> Any:
        return values


class TooLargeError(Exception):
    pass


def bench() -> Bench:
    ops: Any = HostOps()
    device: Any = None
    empty = CardTuning("card", "isa", 0)
    return Bench(ops, device, Chosen(empty), empty, (TooLargeError,))


def subject(**fields: tuple[int, ...]) -> tuple[Subject, list[Values]]:
    """Its result has other bits with 7; 9 does not run; 3 and 4 have other bits together."""
    applied: list[Values] = [{}]

    def call(_: int) -> Any:
        values = applied[-1]
        if 9 in values.values():
            raise TooLargeError("out of shared memory\nsecond line")
        other = 7 in values.values() or {3, 4} <= {*values.values()}
        return np.full(3, 1.5 if other else 1.0)

    return Subject([call, call], fields, applied.append), applied


def test_values_that_change_bits_or_do_not_run_are_left_out() -> None:
    found, applied = subject(columns=(1, 7, 9), warps=(7,), stages=(3,))
    lines: list[str] = []
    kept = sound(bench(), found, lines.append)
    assert kept.fields == {"columns": [1], "stages": [3]}
    assert lines == [
        "columns 7 left out: it changes bits", "columns 9 left out: out of shared memory",
        "warps 7 left out: it changes bits",
    ]  # fmt: skip
    assert applied[-1] == {}, "left as it was"


def test_what_was_found_must_change_no_bit_together() -> None:
    tried, applied = subject()
    lines: list[str] = []
    good, bad = Found({"columns": 3}, 0.1), Found({"columns": 3, "stages": 4}, 0.2)
    assert confirmed(bench(), tried, good, lines.append) is good
    assert confirmed(bench(), tried, None, lines.append) is None
    assert lines == []
    assert confirmed(bench(), tried, bad, lines.append) is None
    assert lines == ["columns 3, stages 4 left out: it changes bits"]
    assert applied[-1] == {}
