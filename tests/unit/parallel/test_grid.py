"""Groups of workers: exact lists."""

from __future__ import annotations

import pytest

from quire.parallel.grid import Grid


def test_eight_workers_as_four_stages_of_two_ranks() -> None:
    grid = Grid(ranks=2, stages=4)
    assert grid.tensor_groups == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert grid.pipeline_groups == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for worker in range(8):
        assert worker in grid.tensor_groups[grid.stage(worker)]
        assert worker in grid.pipeline_groups[grid.rank(worker)]
    assert grid.name(5) == "rank 1 of stage 2"


def test_grids_of_one_row_or_column() -> None:
    assert Grid(3).tensor_groups == [[0, 1, 2]]
    assert Grid(3).pipeline_groups == [[0], [1], [2]]
    assert Grid(1, 3).tensor_groups == [[0], [1], [2]]
    assert Grid(1, 3).pipeline_groups == [[0, 1, 2]]
    assert (Grid(3).name(2), Grid(1, 3).name(2)) == ("rank 2", "stage 2")


@pytest.mark.parametrize(("ranks", "stages"), [(0, 1), (1, 0)])
def test_a_grid_has_workers(ranks: int, stages: int) -> None:
    with pytest.raises(ValueError, match="no worker"):
        Grid(ranks, stages)
