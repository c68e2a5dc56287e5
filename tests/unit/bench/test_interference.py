"""A row for each budget of `quire bench interference`."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from quire.bench.serving import interference
from quire.resolve.arguments import EngineArgs
from tests.unit.bench.parsed import bench_args


@pytest.mark.parametrize(
    ("flags", "budgets"),
    [
        (["--budgets", "auto", "64"], [None, 64]),
        (["--max-num-batched-tokens", "32"], [32]),
        ([], [None]),
    ],
)
def test_one_engine_per_budget(
    flags: list[str], budgets: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def row(_: argparse.Namespace, engine_args: EngineArgs) -> dict[str, Any]:
        return {"budget": engine_args.max_num_batched_tokens}

    monkeypatch.setattr(interference, "_row", row)
    rows = interference.run(bench_args("interference", *flags))
    assert [each["budget"] for each in rows] == budgets
