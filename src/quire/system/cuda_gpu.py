"""NVIDIA's GPUs, found without loading torch."""

from __future__ import annotations

import ctypes

from quire.system.gpu_facts import Gpu, Version

_NAME_BYTES = 256
_CAPABILITY = 75, 76
"""The driver's numbers of the attributes that make the compute capability."""


def cuda_gpu(library: str = "libcuda.so.1") -> Gpu | None:
    """Return the CUDA driver's first GPU; None without one.

    It asks the driver, which respects `CUDA_VISIBLE_DEVICES`, and creates no context.

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
