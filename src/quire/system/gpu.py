"""The GPU that torch would compute on, found without loading torch."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, the first that this process may use; `memory_bytes` are all that it has."""

    name: str
    memory_bytes: int


@cache
def detect_gpu() -> Gpu | None:
    """The first GPU that the CUDA driver shows; None without one, or where torch is built for CPUs.

    It asks the driver, so that `CUDA_VISIBLE_DEVICES` counts, and makes no context there.
    """
    return first_gpu() if torch_cuda_version() else None


def torch_cuda_version() -> str | None:
    """The CUDA that the installed torch is built for, such as "12.8"; None if for none."""
    folder = torch_folder()
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def torch_folder() -> Path | None:
    """Where torch is installed."""
    spec = find_spec("torch")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def first_gpu(library: str = "libcuda.so.1") -> Gpu | None:
    """As `detect_gpu`, whatever torch is; `library` is the driver's."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    device, count = ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
    # Each returns 0 where it succeeded, and counts on those before it.
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or count.value == 0
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, _NAME_BYTES, device)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    )
    return None if failed else Gpu(name.value.decode(errors="replace"), memory.value)
