"""The GPU that torch would use, found without loading torch."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quire.system.cuda_gpu import cuda_gpu
from quire.system.gpu_facts import Gpu
from quire.system.other_gpus import amd_gpu, apple_gpu


@cache
def detect_gpu() -> Gpu | None:
    """Return the first GPU; None without one that the installed torch can use."""
    gpu = first_gpu() if torch_builds() or sys.platform == "darwin" else None
    return None if gpu is None or why_unused(gpu) else gpu


def first_gpu() -> Gpu | None:
    """Return the first GPU that the drivers show, independent of torch."""
    return cuda_gpu() or amd_gpu() or apple_gpu()


def why_unused(gpu: Gpu | None) -> str:
    """Return why torch cannot use a GPU; "" if it can."""
    if torch_folder() is None:
        return "torch is not installed"
    if gpu is None:
        return _why_none()
    if gpu.kind == "mps":
        return ""  # each torch for Apple's chips has Metal
    key, name = _BUILDS[gpu.kind]
    built = torch_builds().get(key)
    if built is None:
        return f"the installed torch is built without {name}"
    major = int(built.partition(".")[0])
    if (0, 0) < gpu.driver < (major, 0):
        runs = ".".join(map(str, gpu.driver))
        return f"its driver runs CUDA up to {runs}, and the installed torch needs CUDA {major}"
    return ""


_BUILDS = {"cuda": ("cuda", "CUDA"), "rocm": ("hip", "ROCm")}
"""Kind of a GPU → what torch's `version.py` calls its builds, and what people do."""


def _why_none() -> str:
    """Return why there is no GPU that torch could use."""
    builds = torch_builds()
    if "xpu" in builds:
        return "the installed torch is built for Intel's GPUs, which Quire does not support"
    for key, name in _BUILDS.values():
        if key in builds:
            return f"the driver shows no GPU (torch is built for {name} {builds[key]})"
    return "the installed torch is built without CUDA"


def torch_builds() -> dict[str, str]:
    """Return what the installed torch is built for, and the version: of "cuda", "hip", "xpu".

    Empty without torch, for CPUs, and on macOS, where each torch has Metal.
    """
    folder = torch_folder()
    try:
        text = (folder / "version.py").read_text() if folder else ""
    except OSError:
        return {}
    return dict(_VERSION.findall(text))


_VERSION = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([\w.-]+)['\"]", re.MULTILINE)


def torch_folder() -> Path | None:
    spec = find_spec("torch")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None
