"""One answer from the answers of several cores to the same call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.core.errors import EngineDeadError
from quire.frontend.client.calls import CoreCalls

FIRST_ONLY = frozenset(
    {
        *("start_op_profile", "op_profile_steps", "stop_op_profile"),
        *("start_python_profile", "stop_python_profile"),
    }
)
"""Methods that only the first ready core runs: its profile stands for all."""


def merged(method: str, results: Sequence[Any]) -> Any:
    """Return one result of a utility method for all replicas; the first one's if all are alike."""
    merge = _MERGES.get(method)
    return results[0] if merge is None or len(results) == 1 else merge(results)


def _adapter(answers: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """Return the answer to `add_lora`: None while a core loads it, an error if a core has one."""
    loaded = [answer for answer in answers if answer is not None]
    failed = [answer for answer in loaded if "error" in answer]
    if failed:
        return failed[0]
    return loaded[0] if len(loaded) == len(answers) else None


def _profile_status(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "active": any(answer["active"] for answer in answers),
        "writing": any(answer["writing"] for answer in answers),
        "files": [name for answer in answers for name in answer["files"]],
        "failures": [text for answer in answers for text in answer["failures"]],
    }


def _kv_snapshot(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the blocks of all replicas in a row, and all prefixes in one tree."""
    maps = [answer["map"] for answer in answers]
    trees = [answer["tree"] for answer in answers]
    owners: list[str] = []
    owner: list[int] = []
    ids: list[int] = []
    parents: list[int] = []
    first = 0  # number of a replica's first block in the row
    for map_, tree in zip(maps, trees, strict=True):
        owner += [each + len(owners) if each >= 0 else each for each in map_["owner"]]
        owners += map_["owners"]
        ids += [node + first for node in tree["id"]]
        parents += [node + first if node >= 0 else node for node in tree["parent"]]
        first += map_["num_blocks"]
    return {
        "map": {
            "num_blocks": first,
            "owners": owners,
            "kind": _joined(maps, "kind"),
            "owner": owner,
            "count": _joined(maps, "count"),
            "blocks_per_cell": max(each["blocks_per_cell"] for each in maps),
        },
        "tree": {
            "block_size": trees[0]["block_size"],
            "num_nodes": sum(tree["num_nodes"] for tree in trees),
            "id": ids,
            "parent": parents,
            "blocks": _joined(trees, "blocks"),
            "users": _joined(trees, "users"),
        },
    }


def _joined(parts: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [value for part in parts for value in part[name]]


_MERGES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "add_lora": _adapter,
    "start_profile": any,
    "stop_profile": _profile_status,
    "profile_status": _profile_status,
    "kv_snapshot": _kv_snapshot,
    "stop_stacks": lambda answers: [stacks for answer in answers for stacks in answer],
    "num_bad_frames": sum,
}


async def call_all(asked: list[CoreCalls], method: str, args: Sequence[Any]) -> Any:
    """Call a utility method of several cores; return one result. Lost ones do not count, unless all
    are."""
    if method in FIRST_ONLY:
        del asked[1:]
    calls = (core.call(method, *args) for core in asked)
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, EngineDeadError):
            raise result
    found = [result for result in results if not isinstance(result, BaseException)]
    if not found:
        assert isinstance(results[0], BaseException)
        raise results[0]
    return merged(method, found)
