"""`quire plan` against real starts."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quire.checkpoint.presets import preset_names
from quire.cli import serve
from quire.cli.main import main
from quire.cli.parser import Parser
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.e2e.serving import serving

BUDGET = 2 * 2**30
"""Bytes: little enough for the memory to decide, and not what sequences can fill."""


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    capsys.readouterr()
    main(["plan", "--json", *flags])
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("embedded", {"max_num_seqs": 2}),
        pytest.param("gpt2", {"load_format": "dummy", "dtype": "bfloat16"}, marks=pytest.mark.slow),
        ("gpt2", {"load_format": "dummy", "quantization": "int8", "kv_cache_dtype": "int8"}),
    ],
)
def test_a_plan_is_what_the_engine_has(
    model: str,
    flags: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    flags = {"gpu_memory_utilization": round(BUDGET / detect().memory_bytes, 4), **flags}
    words = [
        word
        for name, value in flags.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    report = planned(capsys, model, *words)
    # In a process of its own: what this one holds already would count as the engine's.
    program = (
        "import json, sys; from quire import LLM\n"
        "with LLM(sys.argv[1], **json.loads(sys.argv[2])) as llm: print(json.dumps(llm.facts))"
    )
    command = [sys.executable, "-c", program, model, json.dumps(flags)]
    facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    for mine, theirs in {
        "weights": "weight_bytes",
        "activations": "activation_bytes",
        "kv_bytes_per_token": "kv_bytes_per_token",
    }.items():
        assert report[mine] == facts[theirs]
    blocks = facts["num_blocks"]
    assert isinstance(blocks, int)
    assert report["num_blocks"] == pytest.approx(blocks, rel=0.1)


def command_of(said: str) -> list[str]:
    """The words of the command that a plan prints."""
    [line] = [line for line in said.splitlines() if line.startswith("  quire serve ")]
    return shlex.split(line)


@pytest.mark.parametrize(
    "flags",
    [
        ["embedded"],
        ["--model", "embedded", "--max-model-len", "auto", "--no-enable-prefix-caching"],
        ["qwen3-0.6b", "--kv-cache-memory-bytes", "1GiB", "-q", "int8", "--max-num-seqs", "4"],
        ["gpt2", "--load-format", "dummy", "--seed", "-1", "--gpu-memory-utilization", "0.3"],
        ["embedded", "--hf-overrides", '{"rope_theta": 5.0}', "--enable-lora", "-tp", "1"],
    ],
)
def test_the_command_says_what_was_planned(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *flags]) == 0
    words = command_of(capsys.readouterr().out)
    parser = Parser()
    serve.add_arguments(parser)
    printed = EngineArgs.from_cli_args(parser.parse(words[2:]))
    asked = EngineArgs.from_cli_args(parser.parse(flags))
    if asked.model in preset_names():
        asked = replace(asked, load_format="dummy")
    assert printed == asked
    resolve(printed, detect())  # finds the model


def test_the_command_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", "--max-num-seqs", "2", "--num-gpu-blocks-override", "64"]) == 0
    command, action, model, *flags = command_of(capsys.readouterr().out)
    assert (command, action, model) == ("quire", "serve", "embedded")
    with serving(Path(model), *flags, log_folder=tmp_path) as server:
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_person_reads_the_verdict_and_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    assert main(["plan", "embedded", "--max-num-seqs", "8"]) == 0
    said = capsys.readouterr().out
    assert "It fits" in said
    assert "quire serve embedded --max-num-seqs=8" in said
    assert "a cautious guess" in said
    assert "Why\n  dtype bfloat16: the checkpoint's.\n" in said
    assert main(["plan", "embedded", "--hf-overrides", '{"rope_theta": 5.0}']) == 0
    assert (
        """quire serve embedded '--hf-overrides={"rope_theta": 5.0}'""" in capsys.readouterr().out
    )
    assert main(["plan", "qwen3-0.6b", "--kv-cache-memory-bytes", "1MiB"]) == 1
    said = capsys.readouterr().out
    assert "It does not fit" in said
    assert "--kv-cache-memory-bytes" in said


def test_a_context_that_the_memory_cuts_and_what_would_hold_it_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tight = ["qwen3-0.6b", "--kv-cache-memory-bytes", "1GiB"]
    assert main(["plan", *tight]) == 0
    said = capsys.readouterr().out
    assert "The model's 40,960 would fit with:" in said
    report = planned(capsys, *tight)
    assert report["max_model_len"] == 2**30 // 114688 // 16 * 16
    assert report["changes"]
    for change in report["changes"]:  # type: ignore[attr-defined]
        assert change["max_model_len"] == report["model_len"] == 40960
    assert planned(capsys, *tight, "--max-model-len", "auto") == report
