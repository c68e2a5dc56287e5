"""The picture of a benchmark's rows."""

from pathlib import Path
from typing import Any

import pytest

from quire.bench.results import overview as overview_module
from quire.bench.results.overview import draw, overview


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_visible()]


def labels(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_yticklabels()]


def test_a_row_with_repetitions(tmp_path: Path) -> None:
    row = {
        "model": "m",
        "batch_size": 4,
        "rate": 3.0,
        "split": {"model": 0.7, "images": 0.0},
        "min": {"rate": 2.0, "split": {"model": 0.6, "images": 0.0}},
        "repetitions": 2,
        "max": {"rate": 4.0, "split": {"model": 0.8}},
        "machine": {"cores": 2},
    }
    figure = overview("latency", [row])
    assert titles(figure) == ["rate", "split.model"]
    assert figure.get_suptitle() == "quire bench latency, m"
    assert draw(tmp_path, "latency", [row]).name == "latency.png"


def test_rows_are_told_apart_by_what_differs() -> None:
    rows = [{"op": op, "rows": n, "us": 1.5 * n, "ok": True} for op in "ab" for n in (1, 2)]
    figure = overview("kernels", rows)
    assert titles(figure) == ["us"]
    assert labels(figure) == ["a 1", "a 2", "b 1", "b 2"]


@pytest.mark.parametrize("count", [0, 12])
def test_any_number_of_rows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each panel and each row take matplotlib their time.
    monkeypatch.setattr(overview_module, "MOST_PANELS", 2)
    monkeypatch.setattr(overview_module, "MOST_ROWS", 10)
    rows = [{"name": str(i)} | {f"x{n}": float(i) for n in range(3)} for i in range(count)]
    figure = overview("ablate", rows)
    assert len(titles(figure)) == (2 if count else 0)
    assert ("the first" in figure.get_suptitle()) == bool(count)


def test_a_number_that_a_row_lacks() -> None:
    assert titles(overview("compare", [{"a": 1.0, "b": None}, {"a": 2.0, "b": 3.0}])) == ["a", "b"]
