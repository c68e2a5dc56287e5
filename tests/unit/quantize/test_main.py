"""The command: its own calibration texts, its report, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.cli.main import main

FLAGS = ["--scheme", "int8", "--num-threads", "1"]


def test_own_texts_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, report = tmp_path / "text.txt", tmp_path / "report.json"
    text.write_text("Once upon a time there was a hen. She lived by the sea, and she was happy.")
    flags = [*FLAGS, "--method", "gptq", "--num-samples", "4", "--seqlen", "32"]
    flags += ["--report", str(report), "--text", str(text)]
    assert main(["quantize", "embedded-draft", "--output", str(tmp_path / "out"), *flags]) == 0
    original, quantized = json.loads(report.read_text())
    assert (original["model"], quantized["model"]) == ("embedded-draft", "out")
    assert original["kl_divergence"] == pytest.approx(0.0, abs=1e-6)
    assert 0.0 < quantized["kl_divergence"] < 0.1
    assert quantized["perplexity"] == pytest.approx(original["perplexity"], rel=0.1)
    printed = capsys.readouterr()
    assert "MB" in printed.out
    assert "top1_agreement" in printed.out
    assert "\nlayer 1: 1 of " in printed.err


def test_a_model_is_not_judged_by_what_it_was_fitted_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The end.")
    flags = [*FLAGS, "--method", "awq", "--calibration", str(text), "--text", str(text)]
    flags += ["--report", str(tmp_path / "report.json"), "--output", str(tmp_path / "out")]
    assert main(["quantize", "embedded-draft", *flags]) == 2
    assert "--text is the calibration text" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
