"""Medians, tables and files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from quire.bench.results.report import percentile, print_grid, print_table, summarise, write_json

SAMPLES = [
    {"speed": 10.0, "errors": 0, "ms": {"p50": 3.0}},
    {"speed": 30.0, "errors": 4, "ms": {"p50": 1.0}},
    {"speed": 12.0, "errors": 1, "ms": {"p50": 2.0}},
]


def test_medians_beside_the_settings_in_order() -> None:
    row = summarise({"model": "m"}, SAMPLES)
    assert list(row) == ["model", "speed", "errors", "ms", "repetitions", "min", "max"]
    assert row["speed"] == 12.0
    assert row["errors"] == 1
    assert row["ms"] == {"p50": 2.0}
    assert row["repetitions"] == 3
    assert row["min"] == {"speed": 10.0, "errors": 0, "ms": {"p50": 1.0}}
    assert row["max"] == {"speed": 30.0, "errors": 4, "ms": {"p50": 3.0}}


def test_an_even_number_of_repetitions() -> None:
    row = summarise({}, SAMPLES[:2])
    assert row["speed"] == 20.0
    assert row["errors"] == 4
    assert isinstance(row["errors"], int)


@pytest.mark.parametrize("lags", [[{"p99": 2.0}, {}], [{}, {"p99": 2.0}]])
def test_a_repetition_without_some_number(lags: list[dict[str, float]]) -> None:
    row = summarise({}, [{"speed": 1.0, "lag": lag} for lag in lags])
    assert row["lag"] == row["min"]["lag"] == {"p99": 2.0}


def test_json_is_written_or_appended(tmp_path: Path) -> None:
    for name in ("one.json", "deep/rows.jsonl"):
        for value in (1, 2):
            write_json(tmp_path / name, {"a": value, "b": "é"})
    assert json.loads((tmp_path / "one.json").read_text()) == {"a": 2, "b": "é"}
    lines = (tmp_path / "deep/rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["a"] for line in lines] == [1, 2]


def test_a_list_of_rows_is_a_line_each_or_an_array(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": 2}]
    for name in ("rows.json", "rows.jsonl"):
        write_json(tmp_path / name, rows)
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert [json.loads(x) for x in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows


def test_no_number_that_json_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("inf")})


def test_the_table_shows_settings_once_and_measurements_three_times() -> None:
    row = summarise({"model": "m"}, SAMPLES)
    out = io.StringIO()
    print_table("bench x", row | {"machine": {"cpu": "c"}, "command": "quire"}, out)
    assert out.getvalue().splitlines() == [
        "bench x (3 repetitions)",
        "          median     min     max",
        "  model        m",
        "  speed   12.000  10.000  30.000",
        "  errors       1       0       4",
        "  ms.p50   2.000   1.000   3.000",
    ]


def test_a_grid_says_once_what_is_the_same() -> None:
    rows = [
        {
            "op": "gemm",
            "isa": "avx2",
            "rows": 1,
            "share": 0.912,
            "gb_s": 31.2504,
            "unstable": False,
        },
        {"op": "norm", "isa": "avx2", "rows": 16, "share": None, "gb_s": 0.001, "unstable": True},
    ]
    out = io.StringIO()
    print_grid("bench x", [row | {"machine": {}, "min": {"gb_s": 1.0}} for row in rows], out)
    assert out.getvalue().splitlines() == [
        "bench x (2 rows)",
        "  isa avx2",
        "  op    rows   share     gb_s  unstable",
        "  gemm     1  91.20%    31.25",
        "  norm    16       -  1.0e-03  unstable",
    ]


def test_a_grid_names_what_is_true_of_all() -> None:
    out = io.StringIO()
    rows = [{"rows": n, "unstable": True, "quantization": None} for n in (1, 16)]
    print_grid("bench x", rows, out)
    assert out.getvalue().splitlines() == [
        "bench x (2 rows)",
        "  unstable",
        "  rows",
        "     1",
        "    16",
    ]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentiles_are_numpys(count: int, share: float) -> None:
    values = np.random.default_rng(count).normal(size=count).tolist()
    assert percentile(values, share) == pytest.approx(np.percentile(values, share * 100))


def test_the_percentile_of_nothing() -> None:
    assert percentile([], 0.5) == 0.0
