"""Optimisations off and on, over engines that take as long as they are told."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench import ablate
from quire.bench.flags import ABLATIONS
from quire.core.outputs import RequestMetrics
from tests.unit.bench.parsed import bench_args


class FakeEngine:
    """Its tokens take 2 ms each; 1 ms with several scheduler steps; a prefix 3 ms unless cached."""

    vocab_size = 50
    types = {"dtype": "float32"}  # noqa: RUF012

    def __init__(self, args: argparse.Namespace) -> None:
        self.seconds = 0.002 if args.num_scheduler_steps == 1 else 0.001
        self.caching = args.enable_prefix_caching
        self.llm = SimpleNamespace(stats=SimpleNamespace(observer=None))
        self.seen: set[int] = set()

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        hit = self.caching and tuple(prompts[0][:9]) in {tuple(p) for p in self._prefixes()}
        self._known = [*self._prefixes(), prompts[0][:9]]
        first = 0.001 if hit else 0.003
        last = first + self.seconds * (output_len - 1)
        if self.llm.stats.observer:
            self.llm.stats.observer()
        metrics = RequestMetrics(0.0, first_token_time=first, last_token_time=last)
        return [metrics] * len(prompts)

    def _prefixes(self) -> list[list[int]]:
        return getattr(self, "_known", [])


def rows(monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict[str, dict[str, Any]]:
    @contextmanager
    def fake(args: argparse.Namespace) -> Iterator[FakeEngine]:
        yield FakeEngine(args)

    monkeypatch.setattr(ablate, "open_engine", fake)
    args = bench_args("ablate", *flags)
    return {row["optimisation"]: row for row in ablate.run(args)}


def test_the_gain_is_the_time_without_over_the_time_with(monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = rows(monkeypatch, "--switch", "multi-step").values()
    assert row["off"] == pytest.approx(2.0)
    assert row["on"] == pytest.approx(1.0)
    assert row["gain"] == pytest.approx(1.0)
    assert row["published"].startswith("28 %")
    assert row["repetitions"] == 3


def test_every_switch_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(monkeypatch, "--repetitions", "2")
    assert tuple(found) == ABLATIONS == tuple(ablate.SWITCHES)
    assert found["prefix-caching"]["gain"] == pytest.approx(2.0)
