"""What every launch needs: whether kernels can run, and the sizes of their tiles."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.core.errors import ConfigError
from quire.ops.device import Device
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
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            f"Triton cannot start on this machine: {str(error)[:300]}.",
            fix="Install a C compiler and Python's headers (Debian: gcc, python3-dev), "
            "or use --ops reference.",
            param="--ops",
        ) from error


def amd_arch(device: torch.device | None = None) -> str:
    """Return AMD's name of a GPU's instructions, such as "gfx950"."""
    properties: Any = torch.cuda.get_device_properties(device)
    return str(properties.gcnArchName).partition(":")[0]


@cache
def capability(device: torch.device) -> Version:
    """Return a GPU's compute capability. AMD's get the launches of 8.0: no early start, and no
    e4m3 of NVIDIA's."""
    return LEAST_CAPABILITY if torch.version.hip else torch.cuda.get_device_capability(device)


def has_float8(device: torch.device) -> bool:
    """Return whether the device converts from and to e4m3, which Ada and Hopper began with."""
    return device.type != "cuda" or capability(device) >= (8, 9)


def pairs(device: torch.device) -> bool:
    """Return whether kernels may have NVIDIA's instructions for pairs of 16-bit floats."""
    return device.type == "cuda" and not torch.version.hip


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return int(triton.next_power_of_2(n))


def warps(block: int) -> int:
    """Return the warps of a program that reduces a row of `block` elements."""
    return min(max(block // 256, 1), 16)


@cache
def overlap(device: torch.device) -> dict[str, Any]:
    """Return the options of a launch whose kernel calls `overlap.begin`."""
    early = device.type == "cuda" and capability(device) >= (9, 0)
    return {"overlap": True, "launch_pdl": True} if early else {"overlap": False}


@cache
def counters(device: torch.device) -> Tensor:
    """Return int32 zeros [COUNTERS] in which programs of one launch count; they leave zeros."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory that a program may have: 99 KiB on small cards, 227 on Hopper's."""
    if device.type != "cuda":
        return 2**20
    if torch.version.hip:
        return AMD_SHARED[amd_arch(device)]
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


def stages(device: torch.device, wanted: int, nbytes: int, others: int = 0) -> int:
    """Return how many tiles are loaded ahead, at most `wanted`.

    Args:
        nbytes: of what is loaded for one step of a kernel's loop.
        others: bytes of shared memory that the kernel needs besides.
    """
    room = shared_bytes(device) - others - 2048  # for sums among warps
    # Hopper's asynchronous products hold one more, as do the loads of AMD's gfx942.
    spare = 1 if not 64_000 <= room <= 180_000 else 0
    return max(1, min(wanted, room // nbytes - spare))


def processors(device: torch.device) -> int:
    """Return how many programs the device runs at once, at least."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
