"""Finding the GPU without loading torch."""

# ruff: noqa: N802 (the names are the driver's)

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.system import gpu
from quire.system.gpu import Gpu, detect_gpu, first_gpu, torch_cuda_version
from quire.system.hardware import detect


class Driver:
    """CUDA's, with GPUs of 80 GB; `fails` names the function that does."""

    def __init__(self, count: int = 1, fails: str = "") -> None:
        self.count = count
        self.fails = fails

    def _answer(self, name: str) -> int:
        return 100 if name == self.fails else 0

    def cuInit(self, flags: int) -> int:
        return self._answer("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.count
        return self._answer("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return self._answer("cuDeviceGet")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"A GPU"
        return self._answer("cuDeviceGetName")

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        memory._obj.value = 80 * 10**9
        return self._answer("cuDeviceTotalMem_v2")


def found(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Gpu | None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return first_gpu()


def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, Driver()) == Gpu("A GPU", 80 * 10**9)
    assert found(monkeypatch, Driver(count=3)) == Gpu("A GPU", 80 * 10**9, 3)
    assert found(monkeypatch, Driver(count=0)) is None
    for fails in ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceTotalMem_v2"):
        assert found(monkeypatch, Driver(fails=fails)) is None


def test_without_a_driver_there_is_none() -> None:
    assert first_gpu("libno-such-driver.so.1") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n", "12.8"),
        ("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n", None),
        ("cuda = '11.8'\n", "11.8"),
        ("", None),
    ],
)
def test_torchs_build_is_read_from_its_file(
    text: str, wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch was loaded')")
    assert found_version(tmp_path, monkeypatch) is None  # it has no such file
    (tmp_path / "torch" / "version.py").write_text(text)
    assert found_version(tmp_path, monkeypatch) == wanted


def found_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    spec = type("Spec", (), {"submodule_search_locations": [str(folder / "torch")]})
    monkeypatch.setattr(gpu, "find_spec", lambda name: spec)
    return torch_cuda_version()


def test_it_is_what_torch_says() -> None:
    assert torch_cuda_version() == torch.version.cuda


def test_a_torch_for_cpus_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "torch_cuda_version", lambda: None)
    monkeypatch.setattr(gpu, "first_gpu", lambda: 1 / 0)
    detect_gpu.cache_clear()
    assert detect_gpu() is None
    assert detect().gpu is None
    detect_gpu.cache_clear()
