"""What a row says about the machine, and what it must not say."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from quire.bench.bandwidth import Reader, reading
from quire.bench.machine import (
    describe_machine,
    git_commit,
    peak_rss_bytes,
    portable_command,
    portable_name,
)
from quire.core.errors import QuireError


def test_the_machine_is_described_without_paths() -> None:
    machine = describe_machine()
    assert {"cpu", "cores", "isa", "memory_bytes", "os", "python", "torch", "quire"} == set(machine)
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 2**20
    assert "/" not in json.dumps({k: v for k, v in machine.items() if k != "cpu"})


def test_describing_does_not_import_torch() -> None:
    code = (
        "import sys; from quire.bench.machine import describe_machine; describe_machine(); "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_commit_is_short_or_absent() -> None:
    commit = git_commit()
    assert commit is None or 4 <= len(commit) < 60


def test_commands_lose_absolute_paths() -> None:
    argv = ["bench", "latency", "--model", "/data/models/x y", "--json=/tmp/out.json", "-v"]
    assert portable_command(argv) == "quire bench latency --model 'x y' --json=out.json -v"
    assert portable_command(["--peer", "vllm=/opt/vllm/bin/python"]) == "quire --peer vllm=python"
    assert portable_name("org/model") == "org/model"


def test_peak_memory_counts_what_was_touched() -> None:
    """In a process of its own: the peak of this one may be long past."""
    code = (
        "import numpy as np; from quire.bench.machine import peak_rss_bytes as peak;"
        "before = peak(); block = np.ones(2**24, dtype=np.int64); print(peak() - before)"
    )
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(grown.stdout) > 2**24 * 8 // 2


def test_peak_memory_counts_children() -> None:
    before = peak_rss_bytes()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert peak_rss_bytes() > before
    finally:
        child.communicate(b"\n")


def test_bandwidth_is_positive_with_any_number_of_threads() -> None:
    for threads in (1, 2, 3):
        assert Reader(threads, buffer_bytes=2**20).read() > 0.0


def test_bandwidth_in_a_process_of_its_own() -> None:
    with reading(1, buffer_bytes=2**20) as read:
        assert read() > 0.0
        assert read() > 0.0


def test_a_reader_that_fails_says_why() -> None:
    with (
        pytest.raises(QuireError, match=r"could not be measured: [A-Z][a-zA-Z]+Error: "),
        reading(1, -1),
    ):
        pass


def test_a_reader_that_is_killed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Seen(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Seen)
    with reading(1, buffer_bytes=2**20) as read:
        started[0].kill()
        started[0].wait()
        with pytest.raises(QuireError, match="status -9"):
            read()
