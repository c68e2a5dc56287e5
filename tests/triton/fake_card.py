"""Triton's driver for a card that is not here.

Kernels are compiled for the card by Triton and the assembler that comes with it; all of Triton's
way to a launch is the real one. The launch itself checks what CUDA and Triton's launcher in C would
refuse, and runs nothing.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from quire.ops.triton import launch
from quire.system.gpu_facts import AMD_SHARED

SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have, by NVIDIA's capability."""
INTEGERS = ("fill", "group", "heads")
"""Kernels without multiply-adds. Others must say that none is fused: Triton's default differs."""
MOST_Y = 65535
"""Programs in the second and third dimension of a grid; in the first there may be 2^31 − 1."""
WIDTHS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


class FakeCard:
    """What `triton.runtime.driver.active` is.

    Args:
        name: the capability of an NVIDIA card, such as "90", or AMD's name, such as "gfx942".

    Attributes:
        launches: names of the kernels that were launched.
        kernels: what was compiled, once each.
        texts: assembly of the kernels that were loaded.
    """

    def __init__(self, name: str) -> None:
        self.amd = name.startswith("gfx")
        self.capability = 80 if self.amd else int(name)
        self.shared = AMD_SHARED[name] if self.amd else SHARED[self.capability]
        self.target = GPUTarget("hip", name, 64) if self.amd else GPUTarget("cuda", int(name), 32)
        self.launches: list[str] = []
        self.kernels: list[Any] = []
        self.texts: list[str] = []
        self.text = ".amdgcn" if self.amd else ".ptx"
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": self.shared},
            load_binary=lambda *given: (object(), object(), 0, 0, 1024),
            unload_module=lambda module: None,
        )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target

    def keep_text(self, module: Any, function: Any, name: str, files: Any, digest: str) -> None:
        """Triton calls it before it loads a kernel, with the files of all stages."""
        self.texts += [
            Path(path).read_text() for each, path in files.items() if each.endswith(self.text)
        ]

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return what launches a kernel, as Triton asks for it once it is compiled."""
        self.kernels.append(metadata)
        fused = metadata.enable_fp_fusion and source.fn.__name__ not in INTEGERS
        assert not fused, f"{metadata.name} may fuse multiply-adds"
        # Triton's launcher asks an allocator for these, which torch does not set.
        assert metadata.global_scratch_size == 0, f"{metadata.name} needs memory of its own"

        def run(x: int, y: int, z: int, stream: Any, *more: Any) -> None:
            args = more[5:]  # behind the function, its metadata and hooks
            name = metadata.name
            assert 0 <= x * y * z < 2**31, f"{name}: a grid of {x} × {y} × {z} overflows"
            assert max(y, z) <= MOST_Y, f"{name}: CUDA refuses a grid of {x} × {y} × {z}"
            for (param, kind), arg in zip(source.signature.items(), args, strict=True):
                check(f"{name}({param})", kind, arg)
            self.launches.append(name)

        return run

    @property
    def card(self) -> launch.Card:
        """Return what launches know of the card."""
        newer = not self.amd and self.capability >= 89
        early = not self.amd and self.capability >= 90
        options = {"matrix_instr_nonkdim": 16} if self.amd else {}
        return launch.Card(self.shared, 132, newer, not self.amd, early, options)

    def insert(self) -> None:
        """Have this process launch on this card, from tensors wherever they are."""
        driver.set_active(self)
        knobs.runtime.kernel_load_start_hook.add(self.keep_text)
        launch.card = lambda device: self.card


def check(what: str, kind: Any, arg: Any) -> None:
    """Raise AssertionError if Triton's launcher could not pass the argument."""
    if kind == "constexpr":
        return
    if kind[0] == "*":
        assert arg is None or isinstance(arg, torch.Tensor), f"{what} is no pointer: {arg!r}"
    elif kind in WIDTHS:
        assert isinstance(arg, int), f"{what} is no integer: {arg!r}"
        assert -(2 ** (WIDTHS[kind] - 1)) <= arg < 2 ** (WIDTHS[kind] - 1), f"{what}: {arg}"
    else:
        assert kind in ("fp32", "u1", "i1"), f"{what}: {kind}"
