"""The examples run as they stand."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from quire.bench.serving.server_process import running_server
from quire.resolve.arguments import EngineArgs
from tests.e2e.tiny_adapter import write_tiny_adapter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main_of(name: str) -> Any:
    """The example's `main`, to be called in this process."""
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_offline() -> None:
    """As a program of its own, which all end alike."""
    command = [sys.executable, str(EXAMPLES / "offline.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time ...")
    assert "The little dog ..." in done.stdout


def test_simple_profiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    main_of("simple_profiling.py")("embedded", str(tmp_path))
    text = capsys.readouterr().out
    assert text.count(" ...") == 4
    [trace] = tmp_path.iterdir()
    assert f"The trace is in {trace}" in text
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("cat") == "native_op" for event in events) > 100


def test_automatic_prefix_caching(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("automatic_prefix_caching.py")()
    _, first, second = capsys.readouterr().out.splitlines()
    total = int(first.split()[0])
    assert total > 500
    assert f"{total} tokens, 0 of them cached" in first
    cached = int(second.split()[2])
    assert total - 32 < cached < total


def test_openai_client(capsys: pytest.CaptureFixture[str]) -> None:
    flags = {field: getattr(EngineArgs(), field) for field in EngineArgs.__dataclass_fields__}
    main = main_of("openai_client.py")
    with running_server(Namespace(**flags, start_timeout=120.0)) as url:
        main(f"{url}/v1")
        story = capsys.readouterr().out
        assert len(story.split()) > 10
        main(f"{url}/v1")
        assert capsys.readouterr().out == story


def test_async_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(main_of("async_streaming.py")())
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.split(",")[0] for line in lines] == ["boat", "fox"]
    assert all(int(line.split()[1]) > 1 for line in lines), "several pieces each"


def test_llm_engine(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("llm_engine.py")(["--max-num-seqs", "4", "--enforce-eager"])
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["0", "1", "2", "2"]


def test_chat(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("chat.py")()
    text = capsys.readouterr().out
    assert text.count("user: Tell me a story") == text.count("assistant: ") == 2


def test_structured_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("structured_outputs.py")()
    found = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert found["choice"] in ("happy", "sad")
    assert re.fullmatch(r"[a-z]{3,10}@[a-z]{3,10}\.com", found["regex"])
    assert set(json.loads(found["json"])) == {"name", "kind", "age"}
    assert re.fullmatch(r"SELECT (age|weight) FROM pets WHERE \w+ = \d+", found["grammar"])


def test_embed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.golden.tiny_encoders import make_encoder  # imports Transformers

    make_encoder(tmp_path, "bert")
    main_of("embed.py")(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert [" 48 numbers: " in line for line in lines[:3]] == [True] * 3
    assert lines[3].startswith("1.000 ")


def test_lora(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = write_tiny_adapter(tmp_path / "adapter")
    main_of("lora.py")(str(tiny_model), str(adapter))
    without, tuned = capsys.readouterr().out.splitlines()
    assert without.partition(": ")[2] != tuned.partition(": ")[2]


def test_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("metrics.py")()
    lines = capsys.readouterr().out.splitlines()
    assert "vllm:generation_tokens 32" in lines
    assert "vllm:num_requests_running is 0.000 now" in lines
    assert any(line.startswith("vllm:e2e_request_latency_seconds 2 times") for line in lines)
