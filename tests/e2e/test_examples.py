"""The examples run as they stand."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from quire.bench.server_process import running_server
from quire.core.config import EngineArgs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output_of(name: str, *argv: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_offline() -> None:
    text = output_of("offline.py")
    assert text.startswith("Once upon a time ...")
    assert "The little dog ..." in text


def test_simple_profiling(tmp_path: Path) -> None:
    text = output_of("simple_profiling.py", "embedded", str(tmp_path))
    assert text.count(" ...") == 4
    [trace] = tmp_path.iterdir()
    assert f"The trace is in {trace}" in text
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("cat") == "native_op" for event in events) > 100


def test_automatic_prefix_caching() -> None:
    _, first, second = output_of("automatic_prefix_caching.py").splitlines()
    total = int(first.split()[0])
    assert total > 500
    assert f"{total} tokens, 0 of them cached" in first
    cached = int(second.split()[2])
    assert total - 32 < cached < total


def test_openai_client() -> None:
    flags = {field: getattr(EngineArgs(), field) for field in EngineArgs.__dataclass_fields__}
    with running_server(Namespace(**flags, start_timeout=120.0)) as url:
        story = output_of("openai_client.py", f"{url}/v1")
        assert len(story.split()) > 10
        assert output_of("openai_client.py", f"{url}/v1") == story
