"""`quire simulate` on the command line: the table, the JSON, the picture, and its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quire.cli.main import main
from quire.core.cost import PROFILES
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.simulate.hardware import load_profile
from quire.simulate.histogram import Histogram
from quire.system.hardware import detect

CONFIG = resolve(EngineArgs(), detect()).config
LOAD = ("simulate", "--model", "qwen3-0.6b", "--num-prompts", "30", "--input-len", "50")


def test_the_table_and_the_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "row.json"
    argv = [*LOAD, "--hardware", "h100", "--replicas", "2", "--json", str(file)]
    assert main([*argv, "--quantization", "int8", "--kv-cache-dtype", "int8"]) == 0
    row = json.loads(file.read_text())
    assert row["num_requests"] == 30
    assert row["hardware"] == "h100"
    assert row["output_tok_s"] > 0
    assert set(row["ttft_ms"]) == set(row["itl_ms"]) == set(row["e2e_ms"]) == {"p50", "p90", "p99"}
    assert row["itl_ms"]["p50"] <= row["itl_ms"]["p99"]
    out = capsys.readouterr().out
    assert all(name in out for name in row)


@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_a_profile_of_a_busy_machine_is_called_so(
    spread: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(msgspec.json.encode(replace(PROFILES["epyc-9654"], spread=spread)))
    assert main([*LOAD, "--hardware", str(file)]) == 0
    assert ("differed by 80%" in capsys.readouterr().err) is (spread == 0.8)


def test_replicas_for_prompts_keep_answers_steady(tmp_path: Path) -> None:
    """The flags are the server's: each replica has its part of the machine."""
    rows = []
    load = [*LOAD[:3], "--num-prompts", "40", "--input-len", "600", "--output-len", "30"]
    for flags in (["--data-parallel-size", "2"], ["--prefill-replicas", "1"]):
        file = tmp_path / "row.json"
        argv = [*load, "--hardware", "epyc-9654", "--request-rate", "2", *flags]
        argv += ["--decode-replicas", "1"] * (flags[0] == "--prefill-replicas")
        assert main([*argv, "--json", str(file)]) == 0
        rows.append(json.loads(file.read_text()))
    alike, halves = rows
    assert [row["replicas"] for row in rows] == [2, 2]
    assert [row["prefill_replicas"] for row in rows] == [0, 1]
    assert [row["failed"] for row in rows] == [0, 0]
    assert halves["itl_ms"]["p99"] < alike["itl_ms"]["p99"]


def test_a_tpu_has_the_blocks_of_its_page_rule(tmp_path: Path) -> None:
    rows = []
    for length in ("256", "1024"):
        file = tmp_path / "row.json"
        argv = [*LOAD, "--hardware", "tpu-v5e", "--kv-cache-memory-bytes", "256MiB"]
        assert main([*argv, "--max-model-len", length, "--json", str(file)]) == 0
        rows.append(json.loads(file.read_text()))
    small, large = (row["num_blocks"] for row in rows)
    assert large == pytest.approx(small / 4, abs=1)


def test_ranks_and_stages_have_a_card_each(tmp_path: Path) -> None:
    def itl(*flags: str) -> tuple[float, int]:
        file = tmp_path / "row.json"
        argv = ["simulate", "--model", "qwen3-0.6b", "--num-prompts", "3", "--num-clients", "1"]
        assert main([*argv, *flags, "--json", str(file)]) == 0
        row = json.loads(file.read_text())
        return row["itl_ms"]["p50"], row["num_blocks"]

    one, blocks = itl("--hardware", "l4")
    four, more = itl("--hardware", "l4", "--tensor-parallel-size", "4")
    staged, _ = itl("--hardware", "l4", "--pipeline-parallel-size", "2")
    assert one / 4 < four < one  # a fourth of the weights, and sums
    assert more > 4 * blocks
    assert staged == pytest.approx(one, rel=0.05)  # one after the other, each on a card
    cpu = ("--hardware", "epyc-9654")
    assert itl(*cpu, "--tensor-parallel-size", "4") == itl(*cpu)  # they share its memory


def test_a_profile_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    assert main([*LOAD, "--hardware", "l4", "--save-hardware", str(file)]) == 0
    assert load_profile(str(file)) == PROFILES["l4"]
    assert load_profile(str(file)).on_cards(4).on_cards(4) == PROFILES["l4"].on_cards(4)
    file.write_bytes(msgspec.json.encode({"name": 3}))
    assert main([*LOAD, "--hardware", str(file)]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--hardware", "h101"), "did you mean"),
        (("--hardware", "this", "--request-rate", "-1"), "must be positive"),
        (("--hardware", "h100", "--max-model-len", "64"), "longest request"),
        (("--hardware", "h100", "--nnodes", "0"), "nnodes is 0"),
        (("--hardware", "h100", "--nnodes", "2"), "nnodes is 2"),
        (("--hardware", "h100", "--request-rate", "0"), "must be positive"),
        (("--hardware", "tpu-v5e", "--swap-space", "1"), "--swap-space"),
        (("--hardware", "h100", "--trace", "nothing"), "cannot be read"),
    ],
)
def test_mistakes(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOAD, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plot.png"
    status = main([*LOAD, "--hardware", "h100", "--plot", str(file)])
    if find_spec("matplotlib"):
        assert status == 0
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        assert status == 2
        assert "quire[plot]" in capsys.readouterr().err


def test_percentiles_of_a_histogram() -> None:
    values = np.random.default_rng(1).lognormal(-4.0, 1.0, size=50_000)
    histogram = Histogram()
    for part in np.split(values, 10):
        histogram.add(part)
    for share in (0.01, 0.5, 0.9, 0.99):
        assert histogram.percentile(share) == pytest.approx(np.quantile(values, share), rel=0.01)
    assert Histogram().percentile(0.5) == 0.0
