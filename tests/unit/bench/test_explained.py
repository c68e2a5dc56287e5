"""Evidence from a real offline engine, and changes that are tried on it."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import msgspec
import pytest

from quire.bench import prove as proving
from quire.bench.explained import Demand, demand_of
from quire.bench.prove import prove
from quire.bench.serving.server_process import running_server
from quire.cli.main import main
from quire.explain.evidence import load
from quire.explain.limits import save_limits
from quire.explain.report import ITL, THROUGHPUT, Change, Report
from quire.resolve.arguments import EngineArgs
from tests.unit.explain.made import LIMITS, healthy


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine, without measuring it."""
    from quire.system.hardware import cpu_name, detect

    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    cores = detect().cores
    save_limits(
        msgspec.structs.replace(
            LIMITS,
            cpu=cpu_name(),
            cores=cores,
            bandwidth={1: 15e9, cores: 20e9},
            flops={name: {1: 50e9, cores: 90e9} for name in LIMITS.flops},
            reads={name: {1: 15e9, cores: 20e9} for name in LIMITS.flops},  # else it measures
        )
    )


def test_an_offline_run_is_explained(
    tmp_path: Path, limits: None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("report", "evidence")}
    load_flags = ["--num-prompts", "4", "--input-len", "96", "--output-len", "12"]
    repeats = ["--prefix-len", "64", "--no-enable-prefix-caching"]
    written = ["--json", str(files["report"]), "--save-profile", str(files["evidence"])]
    assert main(["explain", *load_flags, *repeats, *written]) == 0
    shown = capsys.readouterr().out
    assert "Where the core's time goes" in shown
    assert "Verdict: " in shown
    report = msgspec.json.decode(files["report"].read_bytes(), type=Report)
    core = ("idle", "tokenize", "detokenize")
    names = ("receive", "schedule", "prepare", "model", "sample", "update", *core)
    assert sum(report.split[name] for name in names) >= 0.99
    evidence = load(files["evidence"])
    window = evidence.window
    assert (window.requests, window.prompt_tokens, window.generation_tokens) == (4, 384, 48)
    assert window.repeated_tokens == 3 * 64
    assert window.steps == 12
    assert sum(tokens * count for tokens, count in window.step_sizes) == pytest.approx(
        window.computed_tokens
    )
    assert main(["explain", "--profile", str(files["evidence"])]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-prompts", "0"], "--num-prompts is 0"),
        (["--prefix-len", "128"], "--prefix-len is 128"),
        (["--profile", "nowhere.json"], "cannot be read"),
        (["--url", "http://127.0.0.1:1", "--num-threads", "2"], "--num-threads=2 cannot change"),
        (["--url", "http://127.0.0.1:1"], "does not answer"),
        (["--url", "a", "--profile", "b"], "give one"),
        (["--num-prompts", "1", "--json", f"{__file__}/r.json"], "cannot be written"),
    ],
)
def test_mistakes_are_told(
    flags: list[str], message: str, limits: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *flags]) in {1, 2}
    assert message in capsys.readouterr().err


def test_changes_are_tried_against_the_engine_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sides take turns, first one and then the other first."""
    turns: list[tuple[bool, int]] = []

    class Side:
        def __init__(self, args: EngineArgs, demand: Demand) -> None:
            self.eager = args.enforce_eager

        def __enter__(self) -> proving.Round:
            return self.one_round

        def __exit__(self, *exc_info: object) -> None:
            pass

        def one_round(self, repetition: int) -> dict[str, float]:
            turns.append((self.eager, repetition))
            return {THROUGHPUT: 100.0 if self.eager else 150.0 + repetition}

    monkeypatch.setattr(proving, "offline_side", Side)
    changes = [
        Change("--no-enforce-eager", "", THROUGHPUT, 0.4, {"enforce_eager": False}),
        Change("nothing to set", "", THROUGHPUT, 0.4),
        Change("--max-itl-stretch 1.5", "", ITL, 0.4, {"max_itl_stretch": 1.5}),  # not offline
    ]
    [proof] = prove(EngineArgs(enforce_eager=True), changes, Demand(), repetitions=3, served=False)
    assert (proof.before, proof.after, proof.repetitions) == (100.0, 151.0, 3)
    assert proof.proven_gain == pytest.approx(0.51)
    assert proof.spread == pytest.approx(0.01)
    assert turns[:2] == [(True, -1), (False, -1)]
    assert turns[2:] == [(True, 0), (False, 0), (False, 1), (True, 1), (True, 2), (False, 2)]


def test_a_change_is_tried_on_real_engines() -> None:
    change = Change("--block-size 32", "", THROUGHPUT, 0.1, {"block_size": 32})
    demand = Demand(num_prompts=2, input_len=8, output_len=4)
    [proof] = prove(EngineArgs(), [change], demand, repetitions=1, served=False)
    assert proof.before > 0
    assert proof.after > 0
    assert proof.proven_gain == pytest.approx(proof.after / proof.before - 1)


def test_a_change_is_tried_on_real_servers() -> None:
    change = Change("--block-size 32", "", THROUGHPUT, 0.1, {"block_size": 32})
    demand = Demand(num_prompts=2, input_len=8, output_len=4, concurrency=2, text=True)
    [proof] = prove(EngineArgs(), [change], demand, repetitions=1, served=True)
    assert proof.before > 0
    assert proof.after > 0


def test_a_running_server_is_explained(limits: None, capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(**dataclasses.asdict(EngineArgs()), start_timeout=60.0)
    with running_server(args) as url:
        assert main(["explain", "--url", f"{url}/v1", "--window", "0.2"]) == 0
        out = capsys.readouterr().out
        assert "Verdict: " in out  # perhaps what other tests do beside it
        assert main(["explain", "--url", url, "--window", "99"]) == 1
        assert "window is wrong" in capsys.readouterr().err


def test_a_load_like_a_servers() -> None:
    evidence = healthy(requests=40, finished=40, prompt_tokens=4000, repeated_tokens=2560)
    demand = demand_of(evidence.window, 2048)
    assert (demand.input_len, demand.output_len, demand.concurrency) == (100, 200, 8)
    assert demand.prefix_len == 64
    assert demand.num_prompts % 8 == 0
    assert not demand.text
    assert demand_of(healthy(finished=0, requests=0).window, 64).output_len == 32


def test_prompts_share_their_beginning_and_no_more() -> None:
    demand = Demand(num_prompts=3, input_len=20, prefix_len=8)
    first, other = demand.prompts(1000, [1]), demand.prompts(1000, [2])
    assert {tuple(p[:8]) for p in first + other} == {tuple(first[0][:8])}
    assert len({tuple(p[8:]) for p in first + other}) == 6
    assert {len(p) for p in first} == {20}
    texts = demand.texts([1])
    assert {len(t.split()) for t in texts} == {20}
    assert len({" ".join(t.split()[:8]) for t in texts}) == 1
    whole = dataclasses.replace(demand, prefix_len=0).texts([1])
    assert {len(t.split()) for t in whole} == {20}
