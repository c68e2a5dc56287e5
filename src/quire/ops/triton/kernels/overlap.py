"""Programmatic dependent launch: a kernel begins while the one before it ends.

NVIDIA cards since Hopper start the next kernel's programs as soon as all of this kernel's have
begun and there is room. What such a kernel does before `begin` must not depend on the kernel
before: it may read weights, and what the host sent: positions, slots and tables.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(overlap: tl.constexpr):
    """Let the next kernel's programs start, and wait until the kernel before has ended."""
    if overlap:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(place):
    """Have the second-level cache read the 128 bytes around each place."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [place.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
