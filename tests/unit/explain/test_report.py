"""What people and programs see of a report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from quire.core.errors import ConfigError
from quire.explain.analyse import explain
from quire.explain.evidence import load
from quire.explain.plot import plot
from quire.explain.report import Proof, Report
from quire.explain.roofline import op_lines
from quire.explain.text import WIDTH, render
from tests.unit.explain.made import healthy, profile

OPS = profile(
    ("linear", "layers.0.mlp.up", 4.0, 36.0, 20.0),
    ("linear", "layers.1.mlp.up", 4.0, 36.0, 20.0),
    ("paged_attention", "layers.0.attn", 1.0, 1.0, 1.0),
)


def test_layers_are_one_line() -> None:
    report = explain(healthy(ops=OPS))
    assert [(line.name, line.module) for line in report.ops] == [
        ("linear", "mlp.up"),
        ("paged_attention", "attn"),
    ]
    first, second = report.ops
    assert first.share == pytest.approx(8 / 9)
    assert first.bound == "memory"
    assert first.of_limit == pytest.approx(0.9)
    assert first.intensity == pytest.approx(20 / 36, rel=1e-6)
    assert second.bound == "overhead"


def test_without_measured_limits_the_best_seen_stands_for_them() -> None:
    report = explain(healthy(ops=OPS, limits=None))
    assert report.limits.source == "seen"
    assert report.limits.bandwidth_bytes_s == pytest.approx(36e9)
    assert op_lines(None, report.limits) == []


def test_the_text_fits_the_terminal() -> None:
    report = explain(
        healthy(ops=OPS, args={"num_threads": 1}, parts={"receive": 2.0, "tokenize": 3.0})
    )
    proof = Proof("--num-threads 4", "output tokens/s", 100.0, 180.0, 0.02, 0.7, 0.8, 3)
    text = render(msgspec.structs.replace(report, proofs=[proof]))
    assert max(map(len, text.splitlines())) <= WIDTH
    for part in ("Verdict: few_threads", "--num-threads 4", "mlp.up", "tokenize", "+80%", "█"):
        assert part in text
    assert "(estimated +70%)" in text
    wide = msgspec.structs.replace(proof, at_least=True)
    assert "(estimated at least +70%)" in render(msgspec.structs.replace(report, proofs=[wide]))
    unknown = msgspec.structs.replace(proof, estimated_gain=0.0)  # the advice had no figure
    text = render(msgspec.structs.replace(report, proofs=[unknown]))
    assert "+80% ± 2%" in text
    assert "(estimated" not in text


def test_a_report_is_json_and_back() -> None:
    report = explain(healthy(ops=OPS))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_evidence_is_kept_and_read(tmp_path: Path) -> None:
    evidence = healthy(ops=OPS)
    evidence.save(tmp_path / "a.json")
    assert load(tmp_path / "a.json") == evidence
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ConfigError, match="save-profile"):
        load(tmp_path / "b.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "c.json")


def test_the_roofline_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = explain(healthy(ops=OPS))
    plot(tmp_path / "r.png", "a model", report)
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "r.png").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot(tmp_path / "r.png", "a model", explain(healthy()))
