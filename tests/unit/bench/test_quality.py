"""`quire bench quality`: the arithmetic of predictions, and the texts they are made on."""

from __future__ import annotations

import argparse
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench import choices, quality
from quire.bench.quality import Prediction, read_documents
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs


def prediction(*rows: dict[int, float], token: int = 0) -> Prediction:
    """From probabilities; the token that stands at each position is `token`."""
    likeliest = [{t: math.log(p) for t, p in row.items()} for row in rows]
    return Prediction(np.array([-row[token] for row in likeliest]), likeliest)


def test_perplexity_is_that_of_the_mean_loss() -> None:
    assert prediction({0: 0.5}, {0: 0.125}).perplexity == pytest.approx(4.0)


def test_divergence_by_hand() -> None:
    p, q = prediction({0: 0.75, 1: 0.25}), prediction({0: 0.5, 1: 0.5})
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert q.divergence_from(p) == pytest.approx(by_hand)
    assert p.divergence_from(p) == pytest.approx(0.0)


def test_what_one_side_does_not_list_counts_as_one() -> None:
    p, q = prediction({0: 0.75, 1: 0.125}), prediction({0: 0.5, 2: 0.25})
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert q.divergence_from(p) == pytest.approx(by_hand)


@given(st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6), st.integers(1, 5))
def test_a_shorter_list_never_diverges_more(weights: list[float], kept: int) -> None:
    total = sum(weights[:3]), sum(weights[3:])
    p = {i: w / total[0] for i, w in enumerate(weights[:3])}
    q = {i: w / total[1] for i, w in enumerate(weights[3:])}
    whole = prediction(q).divergence_from(prediction(p))
    short = {i: v for i, v in q.items() if i < kept}
    assert -1e-9 <= prediction(short).divergence_from(prediction(p)) <= whole + 1e-9


def test_agreement() -> None:
    p = prediction({0: 0.6, 1: 0.4}, {0: 0.6, 1: 0.4})
    q = prediction({0: 0.4, 1: 0.6}, {0: 0.9, 1: 0.1})
    assert q.agreement_with(p) == 0.5


def test_documents(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("one\n\nmore\n---\n\n---\ntwo\n")
    assert read_documents(file) == ["one\n\nmore", "two"]
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_documents(file)
    file.write_text("\n---\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_documents(file)
    assert len(read_documents(quality.STORIES)) == 16


def test_only_what_the_engine_takes() -> None:
    fields = {"dtype": ["float32", "float16"], "quantization": ["none", "int8"]}
    found = [
        (args.dtype, args.quantization)
        for args, _ in choices.combinations({"model": "embedded-draft"}, fields)
    ]
    assert ("float32", "int8") in found
    assert ("float16", None) in found
    with pytest.raises(ConfigError, match="block_size"):
        next(choices.combinations({"model": "embedded-draft", "block_size": 7}, fields))


def test_rows_are_held_to_the_models_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str | None]] = []

    def fake(args: EngineArgs, documents: list[str]) -> tuple[Prediction, dict[str, Any]]:
        asked.append((args.model, args.dtype, args.quantization))
        p = 0.5 if args.quantization is None else 0.25
        return prediction({0: p, 1: 1 - p}), {"tokens": 1}

    monkeypatch.setattr(quality, "predict", fake)
    args = argparse.Namespace(
        text=None, num_threads=None, model=["embedded", "embedded-draft"], kv_cache_dtype=["auto"],
        dtype=["float32"], quantization=["none", "int8"], original=None,
    )  # fmt: skip
    rows = quality.run(args)
    assert logging.root.manager.disable == 0  # as it was
    assert asked == [(m, "float32", q) for m in args.model for q in (None, "int8")]
    assert [row["drift"] for row in rows] == pytest.approx([0.0, 1.0] * 2)
    assert [row["top1_agreement"] for row in rows] == [1.0, 0.0] * 2
    assert rows[0]["kl_divergence"] == pytest.approx(0.0)
    assert rows[1]["kl_divergence"] == pytest.approx(0.5 * math.log(2) - 0.5 * math.log(1.5))

    asked.clear()
    args.original, args.quantization = "story", ["int8"]
    rows = quality.run(args)
    assert asked == [("story", "auto", None), *((m, "float32", "int8") for m in args.model)]
    assert [row["drift"] for row in rows] == pytest.approx([0.0, 1.0, 1.0])
