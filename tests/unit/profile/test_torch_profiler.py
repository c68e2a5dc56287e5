"""A trace of torch's profiler has the native operations, and is what Perfetto reads."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.config import ProfilerConfig
from quire.core.errors import ConfigError
from quire.ops.plans.recorder import record
from quire.ops.providers import load_ops
from quire.profile import trace_file
from quire.profile.torch_profiler import TorchProfiler
from tests.arrays import array, tensor

ROWS = 3
CLOCK_MICROSECONDS = 500
"""What torch's clock may be off on a busy machine; another clock would be off by years."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two steps of a linear layer, a norm that torch computes, and an activation."""
    folder = tmp_path_factory.mktemp("traces")
    [path] = recorded(folder, ProfilerConfig("torch", str(folder), max_iterations=2))
    assert path.name == f"quire_{os.getpid()}.1.pt.trace.json.gz"
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def recorded(folder: Path, config: ProfilerConfig) -> list[Path]:
    """The files in the folder after a recording."""
    with torch.inference_mode():
        ops = load_ops("cpu", num_threads=1)
        packed, x = ops.pack_linear(array(torch.randn(32, 32))), array(torch.randn(1, 32))
        plan = record(
            ops,
            lambda table, x: table.activation(table.linear(x, packed), "relu"),
            (x,),
            8,
            {id(packed): "layers.0.mlp.up"},
        )
        profiler = TorchProfiler(config, [plan.meter])
        profiler.start()
        for number in range(3):
            with profiler.step(f"step {number}"):
                torch.relu(tensor(plan.run((array(torch.randn(ROWS, 32)),))))
        profiler.shutdown()
    return sorted(folder.iterdir())


def test_its_events_are_well_formed(trace: dict[str, Any]) -> None:
    for event in trace["traceEvents"]:
        assert event["ph"] in {"X", "M", "i", "s", "f"}
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert {"pid", "tid", "ts", "dur", "cat"} <= event.keys()
            assert event["dur"] >= 0


def test_events_of_a_thread_nest(trace: dict[str, Any]) -> None:
    threads: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == os.getpid():
            threads[event["tid"]].append((event["ts"], -event["ts"] - event["dur"]))
    assert len(threads) == 2
    for spans in threads.values():
        open_ends: list[float] = []
        for start, end in sorted(spans):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or -end <= open_ends[-1] + 0.01  # of a microsecond: rounding
            open_ends.append(-end)


def test_native_operations_say_what_they_do(trace: dict[str, Any]) -> None:
    native = [e for e in trace["traceEvents"] if e.get("cat") == "native_op"]
    assert [e["name"] for e in native] == [
        "layers.0.mlp.up linear",
        "layers.0.mlp.up activation",
    ] * 2
    arguments = native[0]["args"]
    assert arguments["rows"] == ROWS
    assert arguments["flops"] == 2 * ROWS * 32 * 32
    assert arguments["bytes"] > 4 * 32 * 32
    assert arguments["isa"] in {"portable", "avx2", "avx512", "avx512_vnni", "amx"}
    assert arguments["dtype"] == "float32"
    nanoseconds = 1e3 * native[0]["dur"]
    assert arguments["GB/s"] == pytest.approx(arguments["bytes"] / nanoseconds, abs=0.01)


def test_they_lie_beside_the_step_they_belong_to(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    native = [e for e in events if e.get("cat") == "native_op"]
    assert [step["name"] for step in steps] == ["step 0", "step 1"]
    for step, ops in zip(steps, (native[:2], native[2:]), strict=True):
        for op in ops:
            assert op["pid"] == step["pid"]
            assert op["tid"] != step["tid"]
            assert step["ts"] - CLOCK_MICROSECONDS < op["ts"]
            assert op["ts"] + op["dur"] < step["ts"] + step["dur"] + CLOCK_MICROSECONDS
    names = {e["tid"]: e["args"] for e in events if e["name"] == "thread_name"}
    assert names[native[0]["tid"]] == {"name": "native ops"}
    order = {e["tid"]: e["args"] for e in events if e["name"] == "thread_sort_index"}
    assert order[native[0]["tid"]] == {"sort_index": threading.get_native_id()}


def test_options_reach_torch(tmp_path: Path) -> None:
    config = ProfilerConfig(
        "torch",
        str(tmp_path / "new" / "folder"),
        torch_profiler_record_shapes=True,
        torch_profiler_with_memory=True,
        torch_profiler_with_stack=True,
        torch_profiler_use_gzip=False,
    )
    [path] = recorded(tmp_path / "new" / "folder", config)
    assert path.suffix == ".json"
    text = path.read_text()
    assert json.loads(text)["traceEvents"]
    assert '"Input Dims"' in text
    assert '"[memory]"' in text
    assert '"python_function"' in text


def test_a_trace_that_is_too_long_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.profile.trace_profiler.MAX_OP_RUNS", 3)
    config = ProfilerConfig("torch", str(tmp_path), torch_profiler_use_gzip=False)
    [path] = recorded(tmp_path, config)
    assert path.read_text().count('"native_op"') == 3
    assert "the first 3 native ops" in caplog.text


def test_a_full_disk_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr("quire.profile.trace_profiler.np.save", full)
    with caplog.at_level(logging.WARNING):
        assert recorded(tmp_path, ProfilerConfig("torch", str(tmp_path))) == []
    [warning] = caplog.records
    assert warning.getMessage().endswith("could not be written: No space left on device")


def test_the_writer_says_why_it_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / trace_file.LABELS).write_bytes(trace_file.TraceFacts(1, 2, 0).encode())
    (parts / trace_file.TORCH).write_text("{}")
    np.save(parts / trace_file.RUNS, np.zeros((0, 6), dtype=np.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda _: None)
        assert trace_file.main([str(parts), str(tmp_path / "out.json")]) == 1
    assert capsys.readouterr().err == "torch's trace has no events\n"
    assert not (tmp_path / "out.json").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        TorchProfiler(ProfilerConfig("torch", str(tmp_path / "file" / "below")), [])
