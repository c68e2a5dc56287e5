"""The GPU that torch would use, found without loading torch."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quire.system.records import dataclass

_NAME_BYTES = 256
_CAPABILITY = 75, 76
"""The driver's numbers of the attributes that make the compute capability."""
Version = tuple[int, int]
LEAST_CAPABILITY: Version = (8, 0)
"""Triton's kernels need it: cards before it have no bfloat16 products."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU that this process may use.

    Attributes:
        memory_bytes: its total memory.
        count: how many GPUs this process may use.
        capability: its compute capability; (0, 0) if the driver does not report it.
        driver: newest CUDA version that the driver runs, such as (12, 8); (0, 0) if unknown.
    """

    name: str
    memory_bytes: int
    count: int = 1
    capability: Version = (0, 0)
    driver: Version = (0, 0)


@cache
def detect_gpu() -> Gpu | None:
    """Return the CUDA driver's first GPU; None without one that the installed torch can use.

    It asks the driver, which respects `CUDA_VISIBLE_DEVICES`, and creates no context.
    """
    gpu = first_gpu() if torch_cuda_version() else None
    return None if gpu is None or why_unused(gpu) else gpu


def why_unused(gpu: Gpu | None) -> str:
    """Return why torch cannot use the driver's GPU; "" if it can."""
    if torch_folder() is None:
        return "torch is not installed"
    built = torch_cuda_version()
    if built is None:
        others = [name for name, key in _OTHER_BUILDS.items() if _torch_built_for(key)]
        if others:
            return f"the installed torch is built for {others[0]}, which Quire does not support"
        return "the installed torch is built without CUDA"
    if gpu is None:
        return f"the driver shows no GPU (torch is built for CUDA {built})"
    major = int(built.partition(".")[0])
    if (0, 0) < gpu.driver < (major, 0):
        runs = ".".join(map(str, gpu.driver))
        return f"its driver runs CUDA up to {runs}, and the installed torch needs CUDA {major}"
    return ""


_OTHER_BUILDS = {"AMD's GPUs (ROCm)": "hip", "Intel's GPUs": "xpu"}


def torch_cuda_version() -> str | None:
    """Return the CUDA version of the installed torch, such as "12.8"; None for a CPU build."""
    return _torch_built_for("cuda")


def _torch_built_for(key: str) -> str | None:
    """Return a version that torch's `version.py` holds."""
    folder = torch_folder()
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return None
    found = re.search(rf"^{key}\b[^=\n]*=\s*['\"]([\w.-]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def torch_folder() -> Path | None:
    """Return the folder of torch."""
    spec = find_spec("torch")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def first_gpu(library: str = "libcuda.so.1") -> Gpu | None:
    """Return the driver's first GPU, independent of torch.

    Args:
        library: the driver's library.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    device, count = ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
    # Each call returns 0 on success and needs the calls before it.
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or count.value == 0
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, _NAME_BYTES, device)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    )
    if failed:
        return None
    version = ctypes.c_int()
    known = driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    return Gpu(
        name.value.decode(errors="replace"),
        memory.value,
        count.value,
        _capability(driver, device),
        (version.value // 1000, version.value % 1000 // 10) if known else (0, 0),
    )


def _capability(driver: ctypes.CDLL, device: ctypes.c_int) -> Version:
    """Return a GPU's compute capability; (0, 0) if the driver does not report it."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = any(
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        for value, number in zip((major, minor), _CAPABILITY, strict=True)
    )
    return (0, 0) if failed else (major.value, minor.value)
