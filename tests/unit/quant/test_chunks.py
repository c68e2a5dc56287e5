"""Slices of rows: all rows once, on threads if there are several slices."""

from __future__ import annotations

from threading import get_ident

import pytest

from quire.quant.chunks import for_chunks


@pytest.mark.parametrize(("count", "size"), [(0, 4), (1, 4), (4, 4), (5, 4), (13, 4)])
def test_each_row_is_in_one_slice(count: int, size: int) -> None:
    seen: list[int] = []
    threads: set[int] = set()

    def work(rows: slice) -> None:
        seen.extend(range(count)[rows])
        threads.add(get_ident())

    for_chunks(count, size, work)
    assert sorted(seen) == list(range(count))
    if 0 < count <= size:
        assert threads == {get_ident()}, "a single slice is computed here"
    else:
        assert get_ident() not in threads


@pytest.mark.parametrize("count", [1, 9])
def test_an_error_is_raised_again(count: int) -> None:
    def work(rows: slice) -> None:
        raise ValueError(rows)

    with pytest.raises(ValueError, match="slice"):
        for_chunks(count, 4, work)
