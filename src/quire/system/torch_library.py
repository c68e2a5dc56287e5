"""Loads torch's native library while Python does something else. Does not import torch."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from quire.system import env
from quire.system.gpu import torch_cuda_version, torch_folder

_LIBRARY = Path("lib", "libtorch_cpu.so")


def load_ahead() -> None:
    """Start loading the library, a sixth of torch's import, in a thread without the GIL.

    Errors are left to torch's own import. So is a torch for GPUs, which needs other libraries
    first. Import extension modules before: the system loads one library at a time, so importing one
    meanwhile would wait and hold the GIL.
    """
    threading.Thread(target=load, name="torch-library", daemon=True).start()


def load() -> None:
    """Load the library in this thread, without the GIL."""
    folder = torch_folder()
    if folder is None or torch_cuda_version() or not (folder / _LIBRARY).is_file():
        return
    env.let_idle_threads_sleep()  # OpenMP is loaded with it
    # `CDLL(path)` would hold the GIL; functions called through ctypes do not.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    dlopen(os.fsencode(folder / _LIBRARY), os.RTLD_NOW)
