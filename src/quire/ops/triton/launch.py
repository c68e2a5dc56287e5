"""What every launch needs: whether kernels can run, and the sizes of their tiles."""

from __future__ import annotations

from functools import cache
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.core.errors import ConfigError
from quire.ops.device import Device
from quire.ops.triton.kernels.sampling import fill
from quire.system import env
from quire.system.gpu_facts import AMD_SHARED, LEAST_CAPABILITY, Version

COUNTERS = 2**16

COMPUTE: dict[torch.dtype, Any] = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.float8e4nv,
}
"""Torch's name of a type → Triton's."""


REFUSALS = (RuntimeError, triton.TritonError)
"""What a launch raises that a card cannot run, for example because it has too little memory."""


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU."""
    return env.triton_interprets()


def check(device: Device) -> None:
    """Raise ConfigError if the kernels cannot run on this device."""
    if device.is_host:
        if not interpreted():
            raise ConfigError(
                "Triton's kernels run on a GPU.",
                fix="Use --device cuda; or set TRITON_INTERPRET=1, which is slow, to try them.",
                param="--ops",
            )
        return
    if interpreted():
        raise ConfigError(
            "TRITON_INTERPRET is set, and the interpreter computes on the CPU alone.",
            fix="Unset TRITON_INTERPRET, or use --device cpu.",
            param="--ops",
        )
    if torch.version.hip:
        if (arch := amd_arch()) not in AMD_SHARED:
            raise ConfigError(
                f"Triton's kernels are compiled for {', '.join(AMD_SHARED)}; this GPU is {arch}.",
                fix="Use --ops reference.",
                param="--ops",
            )
    elif (found := torch.cuda.get_device_capability()) < LEAST_CAPABILITY:
        raise ConfigError(
            f"Triton's kernels need compute capability {_version(LEAST_CAPABILITY)}; "
            f"this GPU has {_version(found)}.",
            fix="Use --ops reference.",
            param="--ops",
        )
    try:  # the first use compiles Triton's own module
        triton.runtime.driver.active.get_current_target()
    except (RuntimeError, AssertionError, ImportError, OSError, CalledProcessError) as error:
        raise ConfigError(
            f"Triton cannot start on this machine: {str(error)[:300]}.",
            fix="Install a C compiler and Python's headers (Debian: gcc, python3-dev), "
            "or use --ops reference.",
            param="--ops",
        ) from error
    _try_a_kernel()


def _try_a_kernel() -> None:
    """Raise ConfigError if a kernel cannot run. An old driver loads nothing that a newer assembler
    made; without this the first step would fail, after all weights are loaded."""
    ids = torch.full((1,), 1, dtype=torch.int64, device="cuda")
    try:
        fill[(1,)](ids, ids, 1, block=16, overlap=False)
        torch.cuda.synchronize()
    except REFUSALS as error:
        raise ConfigError(
            f"This GPU's driver does not run what Triton compiles: {str(error)[:300]}.",
            fix="Update the driver; or set TRITON_PTXAS_BLACKWELL_PATH (before capability 9.0: "
            "TRITON_PTXAS_PATH) to the ptxas of a CUDA that it knows; or use --ops reference.",
            param="--ops",
        ) from error


def amd_arch(device: torch.device | None = None) -> str:
    """Return AMD's name of a GPU's instructions, such as "gfx950"."""
    properties: Any = torch.cuda.get_device_properties(device)
    return str(properties.gcnArchName).partition(":")[0]


class Card(NamedTuple):
    """What launches depend on; the defaults are those of Triton's interpreter.

    Attributes:
        shared: bytes of shared memory that a program may have: 99 KiB on small cards, 227 on
            Hopper's.
        processors: programs that run at once, at least.
        float8: it converts from and to e4m3, which Ada and Hopper began with.
        pairs: it has NVIDIA's instructions for pairs of 16-bit floats.
        early: a kernel may start while the one before it ends.
        options: of a launch that multiplies, so that tiles of all sizes run the same instructions.
            AMD's compiler takes 16 × 16 × 16 for small tiles and 32 × 32 × 8 for others, which add
            in another order.
    """

    shared: int = 2**20
    processors: int = 4
    float8: bool = True
    pairs: bool = False
    early: bool = False
    options: dict[str, int] = {}  # noqa: RUF012 - which nobody writes to


@cache
def card(device: torch.device) -> Card:
    """Return what a device can do. AMD's GPUs have another e4m3 than NVIDIA's, or no other."""
    if device.type != "cuda":
        return Card()
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    shared, processors = properties["max_shared_mem"], properties["multiprocessor_count"]
    if torch.version.hip:
        return Card(shared, processors, float8=False, options={"matrix_instr_nonkdim": 16})
    capability = torch.cuda.get_device_capability(device)
    return Card(shared, processors, capability >= (8, 9), pairs=True, early=capability >= (9, 0))


def _version(capability: Version) -> str:
    return ".".join(map(str, capability))


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return int(triton.next_power_of_2(n))


def warps(block: int) -> int:
    """Return the warps of a program that reduces a row of `block` elements."""
    return min(max(block // 256, 1), 16)


def overlap(device: torch.device) -> dict[str, Any]:
    """Return the options of a launch whose kernel calls `overlap.begin`."""
    return {"overlap": True, "launch_pdl": True} if card(device).early else {"overlap": False}


@cache
def counters(device: torch.device) -> Tensor:
    """Return int32 zeros [COUNTERS] in which programs of one launch count; they leave zeros."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def stages(device: torch.device, wanted: int, nbytes: int, others: int = 0) -> int:
    """Return how many tiles are loaded ahead, at most `wanted`.

    Args:
        nbytes: of what is loaded for one step of a kernel's loop.
        others: bytes of shared memory that the kernel needs besides.
    """
    room = card(device).shared - others - 2048  # for sums among warps
    # Hopper's asynchronous products hold one more, as do the loads of AMD's gfx942.
    spare = 1 if not 64_000 <= room <= 180_000 else 0
    return max(1, min(wanted, room // nbytes - spare))


def processors(device: torch.device) -> int:
    """Return how many programs the device runs at once, at least."""
    return card(device).processors
