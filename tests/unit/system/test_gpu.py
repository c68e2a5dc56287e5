"""Finding the GPU without loading torch."""

# ruff: noqa: N802 (the names are the driver's)

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.system import gpu
from quire.system.cuda_gpu import cuda_gpu
from quire.system.gpu import detect_gpu, first_gpu, torch_builds, why_unused
from quire.system.gpu_facts import Gpu
from quire.system.hardware import detect

AMD = Gpu("A GPU", 1, kind="rocm", arch="gfx942")


class Driver:
    """CUDA's, with GPUs of 80 GB; `fails` names the function that does."""

    def __init__(self, count: int = 1, fails: str = "") -> None:
        self.count = count
        self.fails = fails
        self.attributes = {75: 9, 76: 0}

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

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        value._obj.value = self.attributes[number]
        return self._answer("cuDeviceGetAttribute")

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 12080
        return self._answer("cuDriverGetVersion")


def found(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Gpu | None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return first_gpu()


def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, Driver()) == Gpu("A GPU", 80 * 10**9, 1, (9, 0), (12, 8))
    assert found(monkeypatch, Driver(count=3)) == Gpu("A GPU", 80 * 10**9, 3, (9, 0), (12, 8))
    unknown = found(monkeypatch, Driver(fails="cuDeviceGetAttribute"))
    assert unknown == Gpu("A GPU", 80 * 10**9, 1, (0, 0), (12, 8))
    unknown = found(monkeypatch, Driver(fails="cuDriverGetVersion"))
    assert unknown == Gpu("A GPU", 80 * 10**9, 1, (9, 0), (0, 0))
    assert found(monkeypatch, Driver(count=0)) is None
    for fails in ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceTotalMem_v2"):
        assert found(monkeypatch, Driver(fails=fails)) is None


def test_without_a_driver_there_is_none() -> None:
    assert cuda_gpu("libno-such-driver.so.1") is None


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


@pytest.mark.parametrize(
    ("text", "gpu", "said"),
    [
        ("cuda = None\nhip = '6.4.43482-0'\n", None, r"no GPU \(torch is built for ROCm 6\.4"),
        ("cuda = None\nhip = '6.4.43482-0'\n", Gpu("A GPU", 1), "built without CUDA$"),
        ("cuda = None\nhip = '6.4.43482-0'\n", AMD, "^$"),
        ("cuda = '12.8'\nhip = None\n", AMD, "built without ROCm$"),
        ("cuda = None\nhip = None\n", Gpu("A GPU", 1, kind="mps"), "^$"),
        ("cuda = None\nhip = None\nxpu = '20250101'\n", None, "Intel's GPUs, which"),
        ("cuda = None\nhip = None\n", Gpu("A GPU", 1), "built without CUDA$"),
        ("cuda = '12.8'\n", None, r"no GPU \(torch is built for CUDA 12\.8\)"),
        ("cuda = '13.0'\n", Gpu("A GPU", 1, driver=(12, 8)), "up to 12.8, and .* needs CUDA 13$"),
        ("cuda = '12.8'\n", Gpu("A GPU", 1, driver=(12, 0)), "^$"),  # versions of one major agree
        ("cuda = '12.8'\n", Gpu("A GPU", 1), "^$"),
    ],
)
def test_why_a_gpu_is_not_used(
    text: str, gpu: Gpu | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(text)
    found_version(tmp_path, monkeypatch)
    assert re.search(said, why_unused(gpu))


def test_without_torch_no_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert why_unused(Gpu("A GPU", 1)) == "torch is not installed"


def test_an_old_driver_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "torch_builds", lambda: {"cuda": "13.0"})
    for driver, there in (((12, 8), False), ((13, 0), True)):
        card = Gpu("A GPU", 1, driver=driver)
        monkeypatch.setattr(gpu, "first_gpu", lambda card=card: card)
        detect_gpu.cache_clear()
        assert (detect_gpu() is card) is there
    detect_gpu.cache_clear()


def found_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    spec = type("Spec", (), {"submodule_search_locations": [str(folder / "torch")]})
    monkeypatch.setattr(gpu, "find_spec", lambda name: spec)
    return torch_builds().get("cuda")


def test_it_is_what_torch_says() -> None:
    built = {"cuda": torch.version.cuda, "hip": torch.version.hip, "xpu": torch.version.xpu}
    assert torch_builds() == {key: value for key, value in built.items() if value}


def test_a_torch_for_cpus_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "torch_builds", dict)
    monkeypatch.setattr(gpu, "first_gpu", lambda: 1 / 0)
    detect_gpu.cache_clear()
    assert detect_gpu() is None
    assert detect().gpu is None
    detect_gpu.cache_clear()
