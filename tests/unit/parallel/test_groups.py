"""Groups of ranks."""

from __future__ import annotations

import pytest

from quire.parallel.groups import rank_groups


def test_eight_ranks_as_tp2_times_pp4() -> None:
    groups = rank_groups(8, tensor_parallel_size=2, pipeline_parallel_size=4)
    assert groups.tensor == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups.pipeline == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups.data == [[0], [1], [2], [3], [4], [5], [6], [7]]


def test_replicas_come_first() -> None:
    groups = rank_groups(8, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert groups.tensor == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups.pipeline == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups.data == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_one_rank_is_alone() -> None:
    groups = rank_groups(1)
    assert groups.tensor == groups.pipeline == groups.data == [[0]]


@pytest.mark.parametrize("tensor", [1, 2, 3, 4])
@pytest.mark.parametrize("pipeline", [1, 2, 3])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_rank_is_in_one_group_of_each_kind(tensor: int, pipeline: int, replicas: int) -> None:
    world = tensor * pipeline * replicas
    groups = rank_groups(world, tensor, pipeline)
    for kind, size in (
        (groups.tensor, tensor),
        (groups.pipeline, pipeline),
        (groups.data, replicas),
    ):
        assert sorted(rank for group in kind for rank in group) == list(range(world))
        assert {len(group) for group in kind} == {size}


@pytest.mark.parametrize("sizes", [(8, 3, 1), (6, 2, 2), (0, 1, 1), (4, 0, 1), (4, 2, -1)])
def test_ranks_that_make_no_groups(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="ranks"):
        rank_groups(*sizes)
