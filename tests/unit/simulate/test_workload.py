"""Workloads: what a trace says, what a generator draws, and prompts that share what they should."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.simulate.workload import generate, read_trace


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_a_trace_is_sorted_and_begins_at_zero(tmp_path: Path) -> None:
    trace = read_trace(
        write(
            tmp_path / "t.jsonl",
            {"arrival": 12.5, "input_len": 40, "output_len": 3, "prefix": "a", "prefix_len": 16},
            {"arrival": 10, "input_len": 20, "output_len": 2, "prefix": "b"},
            {"arrival": 11, "input_len": 30, "output_len": 1},
        )
    )
    assert trace.arrivals.tolist() == [0.0, 1.0, 2.5]
    assert trace.input_lens.tolist() == [20, 30, 40]
    assert trace.output_lens.tolist() == [2, 1, 3]
    assert trace.prefix_lens.tolist() == [20, 0, 16]
    assert [len(trace.prompt(i)) for i in range(3)] == [20, 30, 40]


def test_a_trace_may_bring_tokens(tmp_path: Path) -> None:
    line = {"arrival": 0, "prompt_token_ids": [5, 6, 7], "output_len": 1}
    assert read_trace(write(tmp_path / "t.jsonl", line)).prompt(0) == [5, 6, 7]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"arrival": 0, "output_len": 1}, "either input_len or prompt_token_ids"),
        ({"arrival": 0, "output_len": 0, "input_len": 4}, "at least one token"),
        ({"arrival": 0, "output_len": 1, "input_len": 4, "wrong": 1}, "unknown field"),
        ({"arrival": "x", "output_len": 1, "input_len": 4}, "Expected `float | null`"),
        ({"arrival": 0, "output_len": 1, "input_len": 4, "prefix_len": 2}, "needs a prefix"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: dict[str, object], message: str) -> None:
    good = {"arrival": 0, "input_len": 4, "output_len": 1}
    with pytest.raises(ConfigError, match=f"Line 2 .*{message}"):
        read_trace(write(tmp_path / "t.jsonl", good, line))


def test_an_empty_or_missing_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    for name in ("empty", "missing"):
        with pytest.raises(ConfigError):
            read_trace(tmp_path / name)


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    load = generate(
        40, rate=10.0, input_len=20, output_len=5, num_prefixes=3, prefix_len=32, seed=1
    )
    prompts = [load.prompt(i) for i in range(40)]
    assert all(len(prompt) == 52 for prompt in prompts)
    for i, j in combinations(range(40), 2):
        same = load.prefixes[i] == load.prefixes[j]
        assert (prompts[i][:32] == prompts[j][:32]) == same
        assert prompts[i][32] != prompts[j][32]
    assert max(map(max, prompts)) < 2**31


@pytest.mark.parametrize("lengths", ["fixed", "uniform", "lognormal"])
def test_lengths_have_their_mean(lengths: str) -> None:
    load = generate(20_000, rate=math.inf, input_len=200, output_len=50, lengths=lengths, seed=3)
    assert load.input_lens.mean() == pytest.approx(200, rel=0.05)
    assert load.output_lens.mean() == pytest.approx(50, rel=0.05)
    assert load.input_lens.min() >= 1
    assert not load.arrivals.any()


def test_arrivals_have_their_rate_and_the_seed_repeats_them() -> None:
    load = generate(20_000, rate=50.0, burstiness=0.5, input_len=1, output_len=1, seed=4)
    assert load.arrivals[-1] == pytest.approx(400, rel=0.05)
    assert (np.diff(load.arrivals) >= 0).all()
    again = generate(20_000, rate=50.0, burstiness=0.5, input_len=1, output_len=1, seed=4)
    assert (again.arrivals == load.arrivals).all()
    with pytest.raises(ConfigError):
        generate(1, rate=0.0, input_len=1, output_len=1)
