"""Medians, tables and files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from quire.bench.report import percentile, print_table, summarise, write_json

SAMPLES = [
    {"speed": 10.0, "errors": 0, "ms": {"p50": 3.0}},
    {"speed": 30.0, "errors": 4, "ms": {"p50": 1.0}},
    {"speed": 12.0, "errors": 1, "ms": {"p50": 2.0}},
]


def test_medians_beside_the_settings_in_order() -> None:
    row = summarise(("ms", "model", "speed", "errors"), {"model": "m"}, SAMPLES)
    assert list(row) == ["ms", "model", "speed", "errors", "repetitions", "min", "max"]
    assert row["speed"] == 12.0
    assert row["errors"] == 1
    assert row["ms"] == {"p50": 2.0}
    assert row["repetitions"] == 3
    assert row["min"] == {"speed": 10.0, "errors": 0, "ms": {"p50": 1.0}}
    assert row["max"] == {"speed": 30.0, "errors": 4, "ms": {"p50": 3.0}}


def test_an_even_number_of_repetitions() -> None:
    row = summarise(("speed", "errors"), {}, SAMPLES[:2])
    assert row["speed"] == 20.0
    assert row["errors"] == 4
    assert isinstance(row["errors"], int)


def test_json_is_written_or_appended(tmp_path: Path) -> None:
    for name in ("one.json", "deep/rows.jsonl"):
        for value in (1, 2):
            write_json(tmp_path / name, {"a": value, "b": "é"})
    assert json.loads((tmp_path / "one.json").read_text()) == {"a": 2, "b": "é"}
    lines = (tmp_path / "deep/rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["a"] for line in lines] == [1, 2]


def test_no_number_that_json_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("inf")})


def test_the_table_shows_settings_once_and_measurements_three_times() -> None:
    row = summarise(("model", "speed", "ms", "errors"), {"model": "m"}, SAMPLES)
    out = io.StringIO()
    print_table("bench x", row | {"machine": {"cpu": "c"}, "command": "quire"}, out)
    assert out.getvalue().splitlines() == [
        "bench x (3 repetitions)",
        "          median     min     max",
        "  model        m",
        "  speed   12.000  10.000  30.000",
        "  ms.p50   2.000   1.000   3.000",
        "  errors       1       0       4",
    ]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentiles_are_numpys(count: int, share: float) -> None:
    values = np.random.default_rng(count).normal(size=count).tolist()
    assert percentile(values, share) == pytest.approx(np.percentile(values, share * 100))


def test_the_percentile_of_nothing() -> None:
    assert percentile([], 0.5) == 0.0
