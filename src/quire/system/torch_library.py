"""Load torch's native library while Python does something else. Does not import torch."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from quire.system import env
from quire.system.gpu import torch_cuda_version, torch_folder

_LIBRARY = Path("lib", "libtorch_cpu.so")


def load_ahead() -> None:
    """Start loading the library, a sixth of torch's import, on a thread without Python's lock.

    Whatever fails is left to torch's own import; so is a torch for GPUs, which needs other
    libraries first. The system loads one library at a time, and who imports an extension module
    meanwhile waits with Python's lock: import those before.
    """
    threading.Thread(target=load, name="torch-library", daemon=True).start()


def load() -> None:
    """Load the library in this thread, without Python's lock."""
    folder = torch_folder()
    if folder is None or torch_cuda_version() or not (folder / _LIBRARY).is_file():
        return
    env.let_idle_threads_sleep()  # OpenMP is loaded with it
    # `CDLL(path)` would keep the lock; functions that are called through ctypes do not.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    dlopen(os.fsencode(folder / _LIBRARY), os.RTLD_NOW)
