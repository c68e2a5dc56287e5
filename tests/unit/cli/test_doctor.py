"""`quire doctor`: every line is true, and what is amiss has a fix."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from quire.cli import doctor
from quire.cli.doctor import Finding
from quire.cli.main import main
from quire.explain.limits import Limits, save_limits
from quire.system.gpu_facts import Gpu
from quire.system.hardware import Hardware, cpu_name


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("QUIRE_CPU_ISA", raising=False)
    return tmp_path / "cache"


def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.examine("127.0.0.1", 0)}


def test_everything_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings()
    names = {"python", "packages", "kernels", "processor", "cores", "memory", "bandwidth", "cache",
             "downloads", "port"}  # fmt: skip
    assert names <= found.keys()
    assert all(bool(finding.fix) == (finding.level != "ok") for finding in found.values())
    assert not [finding for finding in found.values() if finding.level == "fail"]
    assert main(["doctor", "--port", "0"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names)
    assert "0 fail" in said


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--port", "0"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"level", "name", "found", "fix"} == set(rows[0])


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        *_, last = doctor.examine("127.0.0.1", port)
    assert (last.name, last.level) == ("port", "warn")
    assert str(port) in last.found
    assert "--port" in last.fix


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "file"))
    assert findings()["cache"].level == "fail"
    assert main(["doctor", "--port", "0"]) == 1
    assert "Set QUIRE_CACHE_DIR" in capsys.readouterr().out


def test_forced_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CPU_ISA", "portable")
    assert findings()["kernels"].level in ("ok", "warn")  # it may be all that the machine has
    monkeypatch.setenv("QUIRE_CPU_ISA", "z80")
    found = findings()["kernels"]
    assert found.level == "fail"
    assert "Unset QUIRE_CPU_ISA" in found.fix


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "detect", lambda: Hardware(1, 2**30, 2**28))
    found = findings()["memory"]
    assert found.level == "warn"
    assert "0.2 GiB free of 1.0 GiB" in found.found


def test_a_gpu_and_a_torch_that_cannot_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "first_gpu", lambda: None)
    assert "gpu" not in findings()
    monkeypatch.setattr(doctor, "first_gpu", lambda: Gpu("A GPU", 80 * 2**30))
    monkeypatch.setattr(doctor, "why_unused", lambda gpu: "")
    found = findings()["gpu"]
    assert (found.level, found.found[:15]) == ("ok", "A GPU, 80.0 GiB")
    for there, ops in ((True, "Triton's kernels"), (False, "the reference ops")):
        monkeypatch.setattr(doctor, "installed", lambda module, there=there: there)
        assert findings()["gpu"].found.endswith(f"takes it, with {ops}")
    monkeypatch.setattr(doctor, "why_unused", lambda gpu: f"{gpu.name} is too old")
    found = findings()["gpu"]
    assert found.level == "warn"
    assert found.found.endswith("which is not used: A GPU is too old")
    assert "'quire[gpu]'" in found.fix


def test_limits_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings()["bandwidth"].fix == "quire doctor --measure"
    monkeypatch.setattr(doctor, "detect", lambda: Hardware(2, 2**33, 2**33))
    save_limits(Limits(cpu_name(), 2, {1: 20e9, 2: 31e9}, {"float32": {1: 1e11, 2: 2e11}}))
    found = findings()["bandwidth"]
    assert found.level == "ok"
    assert "31.0 GB/s read; products float32 0.20 TFLOP/s" in found.found


def test_limits_that_a_busy_machine_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "detect", lambda: Hardware(2, 2**33, 2**33))
    save_limits(Limits(cpu_name(), 2, {1: 20e9, 2: 31e9}, {"float32": {1: 1e11, 2: 2e11}}, 1.5))
    found = findings()["bandwidth"]
    assert (found.level, "other processes used 1.5 cores" in found.found) == ("warn", True)
    assert "--measure" in found.fix


def test_busy_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1.0, 1.0))
    assert findings()["others"].level == "warn"
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 1.0, 1.0))
    assert findings()["others"].level == "ok"


def test_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "text", lambda path: "always madvise [never]")
    found = findings()["huge pages"]
    assert found.level == "warn"
    assert "madvise" in found.fix
