"""AMD's and Apple's GPUs, from files as their systems have them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from quire.system import other_gpus
from quire.system.gpu_facts import Gpu
from quire.system.other_gpus import amd_gpu, apple_gpu

NODES = [(0, ""), (0, ""), (90402, "ip discovery"), (90402, "ip discovery"), (90010, "aldebaran")]
"""Two processors and three GPUs: the version of the instructions, and the name."""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for number, (version, name) in enumerate(NODES, 1):
        bank = tmp_path / str(5 * number) / "mem_banks" / "0"  # "10" is sorted before "5" as text
        bank.mkdir(parents=True)
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {number * 2**30}\nflags 0\n")
        text = f"cpu_cores_count 0\nsimd_count 304\ngfx_target_version {version}\n"
        (tmp_path / str(5 * number) / "properties").write_text(text)
        (tmp_path / str(5 * number) / "name").write_text(f"{name}\n")
    return tmp_path


def test_amds_first_gpu(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "AMD ip discovery (gfx942)"
    assert amd_gpu(nodes) == Gpu(name, 3 * 2**30, 3, kind="rocm", arch="gfx942")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,2")
    assert amd_gpu(nodes) == Gpu(
        "AMD ip discovery (gfx942)", 4 * 2**30, 2, kind="rocm", arch="gfx942"
    )
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2")
    found = amd_gpu(nodes)
    assert (found.arch, found.count, found.device) == ("gfx90a", 1, "cuda")
    for hidden in ("", "-1", "7"):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", hidden)
        assert amd_gpu(nodes) is None
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-1234abcd")  # an id, which these files lack
    assert amd_gpu(nodes) == Gpu(name, 3 * 2**30, 1, kind="rocm", arch="gfx942")


def test_processors_alone(nodes: Path) -> None:
    for number in (3, 4, 5):
        (nodes / str(5 * number) / "properties").write_text("gfx_target_version 0\n")
    assert amd_gpu(nodes) is None
    assert amd_gpu(nodes / "missing") is None


def test_apples_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.system() == "Darwin" or apple_gpu() is None
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert apple_gpu() is None
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(other_gpus.os, "sysconf", lambda name: 2**14 if "SIZE" in name else 2**20)
    found = apple_gpu()
    assert (found.kind, found.device, found.memory_bytes) == ("mps", "mps", 2**35 // 3)
    assert found.name.startswith("Apple")
