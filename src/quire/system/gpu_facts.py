"""What is known of a GPU."""

from __future__ import annotations

from typing import Literal

from quire.system.records import dataclass

Version = tuple[int, int]
LEAST_CAPABILITY: Version = (8, 0)
"""Triton's kernels need it: NVIDIA's cards before it have no bfloat16 products."""
AMD_SHARED = {"gfx942": 64 * 1024, "gfx950": 160 * 1024}
"""AMD's GPUs that all of Triton's kernels compile for, and the bytes of shared memory that a
program may have there. No kernel has run on one."""
GpuKind = Literal["cuda", "rocm", "mps"]
MAKERS: dict[GpuKind, str] = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU that this process may use.

    Attributes:
        count: how many GPUs this process may use.
        capability: NVIDIA's compute capability; (0, 0) if the driver does not report it.
        driver: newest CUDA version that the driver runs, such as (12, 8); (0, 0) if unknown.
        kind: how torch computes on it: by CUDA, ROCm or Metal (MPS).
        arch: AMD's name of its instructions, such as "gfx950".
    """

    name: str
    memory_bytes: int
    count: int = 1
    capability: Version = (0, 0)
    driver: Version = (0, 0)
    kind: GpuKind = "cuda"
    arch: str = ""

    @property
    def device(self) -> Literal["cuda", "mps"]:
        """Return torch's name of the device: ROCm's is CUDA's."""
        return "mps" if self.kind == "mps" else "cuda"

    @property
    def maker(self) -> str:
        """Return who made it."""
        return MAKERS[self.kind]
