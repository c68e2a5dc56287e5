"""`quire bench` for real, on the embedded model: the rows that other tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.bench import bandwidth
from quire.bench.kernels import case
from quire.cli.main import main

SPREAD = {"mean", "p50", "p90", "p99"}
LENGTHS = ("--input-len", "6", "--output-len", "4")
CASES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "latency": (
        (*LENGTHS, "--batch-size", "2"),
        {
            *("model", "dtype", "quantization", "input_len", "output_len", "batch_size"),
            *("prefill_tok_s", "decode_tok_s", "ttft_s", "tpot_ms", "peak_rss_bytes"),
            *("weight_bytes", "kv_bytes_per_token", "bandwidth_gb_s", "floor_fraction", "split"),
        },
    ),
    "throughput": (
        (*LENGTHS, "--num-prompts", "3"),
        {
            *("num_prompts", "input_len", "output_len", "elapsed_s", "output_tok_s"),
            *("total_tok_s", "requests_s", "split"),
        },
    ),
    "serve": (
        (
            *("--num-prompts", "3", "--num-clients", "2", "--endpoint", "chat", "--slo", "e2e=60"),
            *("--dataset-name", "multi-turn", "--num-turns", "2", *LENGTHS),
        ),
        {
            *("num_clients", "request_rate", "ttft_ms", "itl_ms", "e2e_ms", "output_tok_s"),
            *("errors", "split", "event_loop_lag_ms"),
        },
    ),
    "startup": ((), {"start_to_first_token_s", "phases"}),
}


MANY_ROWS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "kernels": (
        (
            *("--op", "norm", "gemm", "--model", "embedded", "--rows", "3"),
            *("--quantization", "none", "int8", "--repetitions", "2", "--seconds", "0.001"),
        ),
        {
            *("model", "op", "name", "shape", "rows", "dtype", "quantization", "kv_cache_dtype"),
            *("isa", "threads", "time_us", "gb_s", "gflop_s", "limit", "share", "spread"),
            *("unstable", "times_torch", "bandwidth_gb_s", "peak_gflop_s"),
        },
    ),
    "interference": (
        (
            *("--num-streams", "2", "--input-len", "8", "--idle-tokens", "4"),
            *("--num-arrivals", "2", "--arrival-len", "60", "--repetitions", "1"),
            *("--budgets", "64"),
        ),
        {
            *("max_num_batched_tokens", "idle_p50_ms", "idle_p99_ms", "itl_p50_ms", "itl_p99_ms"),
            *("p50_ratio", "p99_ratio", "ttft_s", "arrival_tok_s", "num_streams", "arrival_len"),
        },
    ),
    "quality": (
        (
            *("--model", "embedded-draft", "--dtype", "bfloat16"),
            *("--quantization", "none", "int8", "--kv-cache-dtype", "auto"),
        ),
        {
            *("model", "dtype", "quantization", "kv_cache_dtype", "isa", "weight_bytes"),
            *("kv_bytes_per_token", "tokens", "perplexity", "drift", "kl_divergence"),
            "top1_agreement",
        },
    ),
}


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the memory's bandwidth in less time, and fewer copies of a weight."""
    monkeypatch.setattr(case, "_MAX_COPIES", 4)
    make_reader = bandwidth.Reader.__init__
    monkeypatch.setattr(bandwidth.reading.__wrapped__, "__defaults__", (2**24,))
    monkeypatch.setattr(
        bandwidth.Reader,
        "__init__",
        lambda reader, threads, _=0: make_reader(reader, threads, 2**24),
    )


@pytest.mark.parametrize("name", MANY_ROWS)
def test_benches_of_many_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, keys = MANY_ROWS[name]
    file = tmp_path / "rows.jsonl"
    assert main(["bench", name, *argv, "--json", str(file), "--plot-dir", str(tmp_path)]) == 0
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert capsys.readouterr().out.startswith(f"bench {name} ({len(rows)} row")
    for row in rows:
        assert keys <= set(row)
        assert row["bench"] == name
    if name == "quality":
        original, *quantized = rows
        assert original["drift"] == 0.0
        assert quantized
        for row in quantized:
            assert abs(row["drift"]) < 0.02
            assert 0.0 < row["kl_divergence"] < 0.01
            assert row["top1_agreement"] > 0.95


@pytest.mark.parametrize(
    "name",
    # `unit/bench/test_offline.py` measures it without the command.
    [pytest.param(n, marks=pytest.mark.slow) if n == "throughput" else n for n in CASES],
)
def test_bench(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv, keys = CASES[name]
    file = tmp_path / "row.json"
    command = ["bench", name, *argv, "--repetitions", "1", "--seed", "3", "--json", str(file)]
    assert main([*command, "--plot-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"bench {name} (1 repetition)\n")
    picture = "itl.png" if name == "serve" else f"{name}.png"
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    row = json.loads(file.read_text())
    assert keys <= set(row)
    assert row["min"] == row["max"]
    for measured in row["min"].keys() & keys:
        assert row[measured] == row["min"][measured]
    check(name, row)


def check(name: str, row: dict[str, Any]) -> None:
    """What must be true of the numbers on any machine."""
    if name == "latency":
        assert row["dtype"] == "bfloat16"
        assert isinstance(row["floor_fraction"], float)
        assert row["floor_fraction"] > 0
    elif name == "serve":
        assert row["errors"] == 0
        assert all(set(row[key]) == SPREAD for key in ("ttft_ms", "itl_ms", "e2e_ms"))
        assert row["slo_attainment"] == 1.0
        assert row["prompt_tokens"] > 6, "answers are fed back, and there is a template"
    elif name == "startup":
        phases = row["phases"]
        assert isinstance(phases, dict)
        assert sum(phases.values()) == pytest.approx(row["start_to_first_token_s"])
        assert min(phases.values()) >= 0
