"""Pytest plugin: `make test` runs enough cases of a matrix to cover each pair of its values.

A test that is marked `matrix` has a product of parameters as its cases, such as every instruction
set with every dtype, scheme and epilogue. The cases that this plugin leaves out are marked `slow`,
so `make test-all` runs them. The choice depends on the collected cases alone: it is the same in
every run and in every worker. A case that is asked for by name is always run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

Values = frozenset[tuple[str, int]]
"""Some parameters of a case: the name of each, and its value's identity."""


@pytest.hookimpl(tryfirst=True)  # before the cases that are marked `slow` are deselected
def pytest_collection_modifyitems(items: Sequence[Any]) -> None:
    """Mark as `slow` the cases of a matrix that cover nothing new."""
    matrices: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("matrix"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cases in matrices.values():
        together = cases[0].get_closest_marker("matrix").kwargs.get("together", 2)
        kept = covering([parts(case.callspec.params, together) for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.slow)


def parts(params: dict[str, Any], together: int) -> set[Values]:
    """Return every choice of `together` parameters of a case, with its values of them.

    All cases share the objects that are their parameters' values.
    """
    values = [(name, id(value)) for name, value in sorted(params.items())]
    return {frozenset(chosen) for chosen in combinations(values, min(together, len(values)))}


def covering(cases: list[set[Values]]) -> set[int]:
    """Return the numbers of a few cases that cover what all do: greedily, the first of equals."""
    missing = set().union(*cases)
    left = [set(case) for case in cases]
    chosen: set[int] = set()
    while missing:
        best = max(range(len(left)), key=lambda number: len(left[number]))
        chosen.add(best)
        found = set(left[best])
        missing -= found
        left = [case - found for case in left]
    return chosen
