"""The ranks of a tensor-parallel group as threads of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quire.ops.rank_group import RankGroup
from quire.ops.rank_memory import rank_group_bytes
from quire.parallel.shared_memory import anonymous_file

Result = TypeVar("Result")


def run_ranks(ranks: int, work: Callable[[RankGroup], Result]) -> list[Result]:
    """What `work` returns on each rank, all at the same time; raises what the first one raised.

    A rank whose work raises has failed in the step, so that nobody waits for it.
    """
    memory = anonymous_file(rank_group_bytes(ranks))
    groups = [RankGroup(memory, rank, ranks) for rank in range(ranks)]
    os.close(memory)

    def run(group: RankGroup) -> Result:
        try:
            return work(group)
        except BaseException:
            group.fail()
            raise

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, groups))
