"""The command's flags, and a whole run in which only the server is missing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.cli.main import main
from quire.cli.parser import Parser
from quire.resolve.arguments import EngineArgs
from quire.tune import command as tune_command
from quire.tune import main as command
from quire.tune import memory, server
from quire.tune.command import _Tuning
from quire.tune.objective import Measurement
from quire.tune.report import Facts
from quire.tune.search import Result, Trial
from tests.unit.tune.modelled import Modelled
from tests.unit.tune.test_search import peak

WORDS = ["opt-125m", "--load-format", "dummy", "--num-prompts", "4", "--output-len", "4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--slo is missing"),
        (["--slo", "ttft=x"], "--slo has"),
        (["--slo", "ttft=1", "--request-rate", "3"], "Tuning finds the request rate"),
        (["--slo", "ttft=1", "--base-url", "http://x"], "tuning starts its own"),
        (["--slo", "ttft=1", "--output", "x.ini"], "must end in"),
        (["--slo", "ttft=1", "--hold", "max-num-sqes"], "did you mean max_num_seqs"),
        (["--slo", "ttft=1", "--space", "a=1"], "unknown flag"),
        (["--slo", "ttft=1", "--model", "other"], "give one of them"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *WORDS, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("method", ["search", "grid"])
def test_a_whole_run(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Modelled(lambda c: 0.6 * peak(c), peak)

    class Fake(server.ServerBench):
        __call__ = staticmethod(bench)  # type: ignore[assignment]

        def profile(self, configuration: object, rate: float) -> tuple[Measurement, None]:
            return bench.at(configuration, rate), None  # type: ignore[arg-type]

    monkeypatch.setattr(server, "ServerBench", Fake)
    monkeypatch.setattr(memory, "largest_share", lambda args, start: 0.7)
    output = tmp_path / "best.toml"
    words = ["tune", *WORDS, "--slo", "ttft=1", "--method", method, "--max-runs", "4"]
    words += ["--study", str(tmp_path / "study"), "--output", str(output)]
    words += ["--space", "max-num-seqs=8,32", "--space", "max-num-batched-tokens=512,1024"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert f"quire serve --config {output}" in printed.out
    report = (tmp_path / "study" / "report.md").read_text()
    assert "What was measured" in report
    data = json.loads((tmp_path / "study" / "report.json").read_text())
    trials = data["result"]["trials"]
    assert len(trials) <= 5

    parser = Parser()
    from quire.cli import serve

    serve.add_arguments(parser)
    args = EngineArgs.from_cli_args(parser.parse(["--config", str(output)]))
    assert args.model == "opt-125m"
    assert args.load_format == "dummy"
    best = data["result"]["best"]["configuration"]
    assert {name: getattr(args, name) for name in best} == best
    if method == "search":
        return
    assert (args.max_num_seqs, args.max_num_batched_tokens) == (32, 512)
    starts = bench.starts
    assert main(words) == 0
    assert bench.starts <= starts + 1  # the start, measured again
    assert "earlier measurements" in capsys.readouterr().err


def test_the_report_is_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a full disk costs the least."""
    folder = tmp_path / "study"
    folder.mkdir()
    trial = Trial({}, "start", [], None, "")
    tuning = SimpleNamespace(start=EngineArgs(), output=tmp_path / "a.yaml", folder=folder)

    def full(*given: object) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(tune_command, "write_settings", full)
    facts = Facts("m", "ttft=1", 0.95, "a load", {}, "quire tune")
    with pytest.raises(OSError, match="full"):
        _Tuning._write(tuning, Result([trial], [], trial), facts)  # type: ignore[arg-type]
    assert json.loads((folder / "report.json").read_text())["facts"]["model"] == "m"


def test_help_names_every_engine_flag(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    command.add_arguments(parser)
    assert "--max-num-seqs" in parser.format_help()
    assert EngineArgs.from_cli_args(parser.parse([])) == EngineArgs()
