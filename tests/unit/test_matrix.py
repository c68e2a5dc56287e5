"""The cases of a matrix that `make test` runs."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.matrix import covering, parts, pytest_collection_modifyitems

AXES = {"isa": 5, "dtype": 3, "scheme": 4, "op": 6}
CASES = [dict(zip(AXES, values, strict=True)) for values in product(*map(range, AXES.values()))]


@pytest.mark.parametrize("together", [1, 2, 3])
def test_every_choice_of_values_is_covered(together: int) -> None:
    covered = [parts(case, together) for case in CASES]
    chosen = covering(covered)
    assert set().union(*(covered[number] for number in chosen)) == set().union(*covered)
    least = {1: 6, 2: 30, 3: 120}[together]  # the product of the longest axes
    assert least <= len(chosen) <= 1.6 * least
    assert chosen == covering(covered)


class Item:
    """A collected case of a test."""

    def __init__(self, name: str, params: dict[str, Any], *marks: pytest.MarkDecorator) -> None:
        self.nodeid = f"{name}[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.MarkDecorator | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark


def test_the_rest_is_slow() -> None:
    matrix = [Item("a", case, pytest.mark.matrix) for case in CASES]
    once = [Item("b", case, pytest.mark.matrix(together=1)) for case in CASES]
    plain = [Item("c", case) for case in CASES]
    pytest_collection_modifyitems([*matrix, *once, *plain])
    kept = [sum("slow" not in item.marks for item in items) for items in (matrix, once, plain)]
    assert 30 <= kept[0] <= 48
    assert kept[1:] == [6, len(CASES)]


def test_a_case_that_is_asked_for_by_name_is_run() -> None:
    item = Item("a", CASES[77], pytest.mark.matrix)
    pytest_collection_modifyitems([item])
    assert "slow" not in item.marks
