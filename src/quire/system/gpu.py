"""The GPU that torch would use, found without loading torch."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quire.system.records import dataclass

_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU that this process may use.

    Attributes:
        memory_bytes: its total memory.
        count: how many GPUs this process may use.
    """

    name: str
    memory_bytes: int
    count: int = 1


@cache
def detect_gpu() -> Gpu | None:
    """Return the CUDA driver's first GPU; None without one, or if torch is built for CPUs.

    It asks the driver, which respects `CUDA_VISIBLE_DEVICES`, and creates no context.
    """
    return first_gpu() if torch_cuda_version() else None


def torch_cuda_version() -> str | None:
    """Return the CUDA version of the installed torch, such as "12.8"; None for a CPU build."""
    folder = torch_folder()
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
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
    return None if failed else Gpu(name.value.decode(errors="replace"), memory.value, count.value)
