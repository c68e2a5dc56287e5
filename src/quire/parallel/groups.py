"""Which ranks work together: a pure function of how many there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankGroups:
    """Lists of ranks; every rank is in one group of each kind.

    Attributes:
        tensor: share the layers' weights, and add up what each computes. Neighbours, for they
            speak most with one another.
        pipeline: hand hidden states on, in this order.
        data: hold the same weights; requests are dealt out among them.
    """

    tensor: list[list[int]]
    pipeline: list[list[int]]
    data: list[list[int]]


def rank_groups(
    world_size: int, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> RankGroups:
    """The groups of `world_size` ranks, numbered data-parallel replica by replica, in each pipeline
    stage by stage, in each rank by rank of the tensor-parallel group.

    Raises:
        ValueError: a size is not positive, or the ranks do not make whole replicas.
    """
    tensor, pipeline = tensor_parallel_size, pipeline_parallel_size
    if min(world_size, tensor, pipeline) < 1:
        raise ValueError("a number of ranks is positive")
    replica = tensor * pipeline
    if world_size % replica:
        raise ValueError(
            f"{world_size} ranks are no whole number of replicas of {tensor} × {pipeline}"
        )
    ranks = range(world_size)
    return RankGroups(
        tensor=[list(ranks[first : first + tensor]) for first in ranks[::tensor]],
        pipeline=[
            list(ranks[first + place : first + replica : tensor])
            for first in ranks[::replica]
            for place in range(tensor)
        ],
        data=[list(ranks[place::replica]) for place in range(replica)],
    )
