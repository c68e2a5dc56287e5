"""`quire profile` on the built-in model: its tables, and the files it writes."""

from __future__ import annotations

import csv
import gzip
import json
import pstats
from pathlib import Path

import pytest

from quire.cli.main import main
from quire.explain.limits import Limits, save_limits
from quire.system.hardware import cpu_name, detect


@pytest.mark.parametrize(
    "traces",  # for which Python profiles the imports of torch; test_profile.py reads a trace
    [False, pytest.param(True, marks=pytest.mark.slow)],
)
def test_it_takes_a_run_apart(
    traces: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    cores = detect().cores
    known = {"float32": {cores: 1e11}}
    save_limits(Limits(cpu_name(), cores, {cores: 3e10}, known, reads={"float32": {cores: 3e10}}))
    files = [
        f"--json={tmp_path / 'p.json'}", f"--csv={tmp_path / 'p.csv'}",
        f"--python={tmp_path / 'python'}",
    ]  # fmt: skip
    if traces:
        pytest.importorskip("torch")
        files.append(f"--trace={tmp_path / 'traces'}")
    lengths = ["--input-len=8", "--output-len=3", "--num-prompts=2"]
    assert main(["profile", "embedded", "--layerwise", *lengths, *files]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("embedded: 3 steps, 20 tokens, 2.0 sequences/step")
    lines = [line.strip() for line in printed.splitlines()]
    for part in ("step ", "model ", "layers ", "qkv (linear) ", "paged_attention ", "python "):
        assert any(line.startswith(part) for line in lines), part
    assert any(line.startswith("linear (bfloat16, ") for line in lines)
    assert "Python of the core" in printed

    content = json.loads((tmp_path / "p.json").read_text())
    step = content["model_stats"]
    parts = sum(child["entry"]["cpu_time_us"] for child in step["children"])
    assert parts == pytest.approx(step["entry"]["cpu_time_us"], rel=0.05)
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert rows[0]["trace"] == "step"
    if traces:
        [trace] = (tmp_path / "traces").iterdir()
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert any(event.get("cat") == "native_op" for event in events)
    core = pstats.Stats(str(tmp_path / "python" / "core.pstats")).stats  # type: ignore[attr-defined]
    assert any(function == "step" for _, _, function in core)
    assert (tmp_path / "python" / "front.pstats").exists()


def test_what_cannot_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["profile", "--num-prompts", "0"])
    assert caught.value.code == 2
    assert "0 is not at least 1" in capsys.readouterr().err
