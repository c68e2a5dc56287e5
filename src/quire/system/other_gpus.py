"""GPUs of other makers than NVIDIA, found without loading torch. Quire has run on none of them."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

from quire.system import env
from quire.system.gpu_facts import Gpu
from quire.system.proc import fields, text

_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_NAME_BYTES = 128
METAL_SHARE = 2 / 3
"""Of the memory, which an Apple GPU may use at least; larger machines allow more."""


def amd_gpu(nodes: Path = _NODES) -> Gpu | None:
    """Return the first AMD GPU that Linux's driver (amdkfd) shows; None without one.

    Args:
        nodes: a folder for each processor of the driver's topology.
    """
    found = _visible([node for node in sorted(nodes.glob("*"), key=_number) if _version(node)])
    if not found:
        return None
    first = found[0]
    version = _version(first)
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    banks = (fields(text(path)) for path in first.glob("mem_banks/*/properties"))
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks)
    name = f"AMD {text(first / 'name').strip() or 'GPU'} ({arch})"
    return Gpu(name, memory, len(found), kind="rocm", arch=arch)


def _visible(nodes: list[Path]) -> list[Path]:
    """Return the nodes of the GPUs that this process may use, in the order of its variable."""
    listed = env.visible_amd_gpus()
    if listed is None:
        return nodes
    found: list[Path] = []
    for name in filter(None, map(str.strip, listed.split(","))):
        if name.startswith("GPU-"):  # an id, which the files lack: it is one of them
            found += nodes[len(found) : len(found) + 1]
        elif name.isdigit() and int(name) < len(nodes):
            found.append(nodes[int(name)])
        else:  # as HIP does: what follows an impossible number is not visible
            break
    return found


def _number(node: Path) -> int:
    return int(node.name) if node.name.isdigit() else 0


def _version(node: Path) -> int:
    """Return the version of a node's instructions, such as 90402 of gfx942; 0 of a CPU."""
    return fields(text(node / "properties")).get("gfx_target_version", 0)


def apple_gpu() -> Gpu | None:
    """Return the GPU of an Apple chip; None on other machines."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Gpu(f"{_chip()} GPU", int(METAL_SHARE * memory), kind="mps")


def _chip() -> str:
    name, size = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t(_NAME_BYTES)
    try:
        ctypes.CDLL(None).sysctlbyname(
            b"machdep.cpu.brand_string", name, ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (AttributeError, OSError):
        return "Apple"
    return name.value.decode(errors="replace") or "Apple"
