"""`quire bench`: every flag parses, every result has its circumstances."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quire.bench import latency, quality, throughput
from quire.bench.flags import KERNEL_FAMILIES
from quire.bench.main import BENCHMARKS, run
from quire.resolve.arguments import EngineArgs
from tests.unit.bench.parsed import bench_args

ONE_ENGINE = ("ablate", "compare", "latency", "overhead", "serve", "startup", "throughput")
MANY_ENGINES = ("kernels", "quality")


@pytest.mark.parametrize("name", ONE_ENGINE)
def test_all_take_the_common_flags(name: str) -> None:
    args = bench_args(
        *(name, "--model", "m", "--load-format", "dummy", "--dtype", "bfloat16", "--seed", "7"),
        *("--repetitions", "5", "--json", "x.json", "--note", "n"),
    )
    engine = EngineArgs(model="m", load_format="dummy", dtype="bfloat16", seed=7)
    assert EngineArgs.from_cli_args(args) == engine
    assert (args.bench, args.repetitions, args.json, args.note) == (name, 5, Path("x.json"), "n")


def test_a_command_line_of_vllm() -> None:
    args = bench_args(
        *("throughput", "--backend", "vllm", "--dataset-name", "random", "--num-prompts", "9"),
        *("--random-input-len", "7", "--random-output-len", "5", "--output-json", "x.json"),
    )
    assert (args.num_prompts, args.input_len, args.output_len) == (9, 7, 5)
    assert args.json == Path("x.json")


@pytest.mark.parametrize("name", MANY_ENGINES)
def test_types_come_in_lists(name: str) -> None:
    args = bench_args(
        *(name, "--model", "a", "b", "--dtype", "float32", "bfloat16"),
        *("--quantization", "none", "int8", "--json", "x.jsonl", "--note", "n"),
    )
    assert (args.model, args.dtype) == (["a", "b"], ["float32", "bfloat16"])
    assert args.quantization == ["none", "int8"]
    with pytest.raises(SystemExit):
        bench_args(name, "--quantization", "int7")


def test_families_of_kernels() -> None:
    from quire.bench.kernels.command import FAMILIES

    assert tuple(FAMILIES) == KERNEL_FAMILIES


def test_there_are_ten() -> None:
    assert sorted(BENCHMARKS) == sorted([*ONE_ENGINE, *MANY_ENGINES, "interference"])
    modules = (import_module(f"quire.bench.{module}") for module, *_ in BENCHMARKS.values())
    assert all(callable(module.run) for module in modules)


@pytest.mark.parametrize("argv", [("nothing",), ("latency", "--batch-size", "0")])
def test_wrong_flags_end_with_usage(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench_args(*argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(("errors", "status"), [(0, 0), (2, 1)])
def test_table_and_row(
    errors: int,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fake(args: argparse.Namespace) -> dict[str, Any]:
        measured = {"speed": 1.5, "errors": errors}
        return {"num_prompts": 3, **measured, "repetitions": 1, "min": measured, "max": measured}

    monkeypatch.setattr(throughput, "run", fake)
    argv = ["bench", "throughput", "--model", "/data/m", "--note", "shared"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/quire", *argv])
    file = tmp_path / "row.json"
    assert run(bench_args(*argv[1:], "--json", str(file))) == status
    assert capsys.readouterr().out.startswith("bench throughput (1 repetition)\n")
    row = json.loads(file.read_text())
    assert row["bench"] == "throughput"
    assert row["command"] == "quire bench throughput --model m --note shared"
    assert row["note"] == "shared"
    assert row["machine"]["cores"] >= 1
    assert {"commit", "date", "repetitions", "min", "max", "num_prompts"} <= set(row)
    assert str(tmp_path) not in file.read_text()


def test_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(args: argparse.Namespace) -> list[dict[str, Any]]:
        return [{"model": "m", "perplexity": value} for value in (1.5, 2.5)]

    monkeypatch.setattr(quality, "run", fake)
    file = tmp_path / "rows.jsonl"
    assert run(bench_args("quality", "--json", str(file))) == 0
    assert capsys.readouterr().out.startswith("bench quality (2 rows)\n  model m\n")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["perplexity"] for row in rows] == [1.5, 2.5]
    assert all(row["bench"] == "quality" and "machine" in row for row in rows)


def test_a_terminated_benchmark_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it started in a `try` ends in its `finally`; the handler of before is back."""
    ended = []

    def benchmark(_: argparse.Namespace) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # ignored: `timeout` sends two
            ended.append(True)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(latency, "run", benchmark)
    with pytest.raises(SystemExit, match="143"):
        run(bench_args("latency"))
    assert ended
    assert signal.getsignal(signal.SIGTERM) is before
