"""An NVIDIA GPU by torch, or an AMD GPU, which torch calls CUDA as well.

Only NVIDIA's were ever tried.
"""

from __future__ import annotations

import gc
import mmap
import re
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.core.errors import ConfigError, OutOfMemoryError
from quire.ops.device import Event
from quire.ops.graphs import Graph
from quire.ops.torch_ops.devices import CopyQueue, TorchAccelerator
from quire.system.gpu import first_gpu, why_unused

_ARCH = re.compile(r"sm_(\d+)")
LARGE = 2**20
"""Bytes from which pinned memory has pages of its own."""


class CudaDevice(TorchAccelerator):
    """A GPU, on which this thread computes from now on.

    Args:
        card: which of those that this process may use.

    Raises:
        ConfigError: torch does not see it.
    """

    def __init__(self, card: int = 0) -> None:
        if not torch.cuda.is_available():
            why = why_unused(first_gpu()) or "nvidia-smi may say why"
            raise ConfigError(
                f"--device is cuda, but torch sees no GPU: {why}.",
                fix="Install torch for CUDA and a driver for its version, or use --device cpu.",
                param="--device",
            )
        if card >= torch.cuda.device_count():
            raise ConfigError(
                f"GPU {card} is missing: torch sees {torch.cuda.device_count()}.",
                fix="Lower --tensor-parallel-size, or check CUDA_VISIBLE_DEVICES.",
                param="--device",
            )
        _check_capability(card)
        self.torch = torch.device("cuda", card)
        torch.cuda.set_device(self.torch)  # Triton launches where torch is
        self._pool: Any = None

    def pinned(self, nbytes: int) -> Tensor:
        """Large memory is registered by hand: torch's own allocator of pinned memory rounds up to a
        power of two, and keeps what is freed."""
        if nbytes < LARGE:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(pages, dtype=torch.uint8)  # which keeps `pages` alive
        runtime = torch.cuda.cudart()
        error = runtime.cudaHostRegister(memory.data_ptr(), len(pages), 0)
        if int(error) != 0:
            raise OutOfMemoryError(
                f"The system refuses to pin {nbytes / 2**30:,.2f} GiB of host memory: {error}.",
                fix="Lower --cpu-offload-gb, or raise the limit of locked memory (ulimit -l).",
                param="--cpu-offload-gb",
            )
        weakref.finalize(pages, runtime.cudaHostUnregister, memory.data_ptr())
        return memory[:nbytes]

    def record(self) -> Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.torch))
        return event

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self.torch).wait_event(event)

    def capture(self, work: Callable[[], object], reserve: int = 0) -> Graph:
        """Graphs share memory: only results of the last replay are read. Sizes come in any order,
        so without a piece for the largest results each size would take memory of its own."""
        first, self._pool = self._pool is None, self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        collects, stream = gc.isenabled(), torch.cuda.current_stream(self.torch)
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                gc.disable()  # CUDA refuses to release memory meanwhile
                if first and reserve:
                    torch.empty(reserve, dtype=torch.uint8, device=self.torch)  # free again at once
                work()
        finally:
            torch.cuda.set_stream(stream)  # torch leaves that of a capture that failed
            if collects:
                gc.enable()
        captured: Graph = graph
        return captured

    def borrowed(self, result: Tensor) -> Tensor:
        if not result.is_contiguous():
            return result
        there = torch.as_tensor(_Bytes(result), device=self.torch)
        return there.view(result.dtype).view(result.shape)

    def seconds(self, work: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self.torch)
        start.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def copies(self) -> CopyQueue:
        return _Stream(self.torch)

    def memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self.torch)
        return total - free, total


def _check_capability(card: int) -> None:
    """Raise ConfigError if the installed torch has no kernels for a GPU as old as this one."""
    if torch.version.hip:
        arch = torch.cuda.get_device_properties(card).gcnArchName.partition(":")[0]
        if (archs := torch.cuda.get_arch_list()) and arch not in archs:
            raise ConfigError(
                f"The installed torch has no kernels for {arch}, which "
                f"{torch.cuda.get_device_name(card)} needs.",
                fix="Install a torch for it, or use --device cpu.",
                param="--device",
            )
        return
    built = [int(found[1]) for arch in torch.cuda.get_arch_list() if (found := _ARCH.match(arch))]
    major, minor = torch.cuda.get_device_capability(card)
    if built and 10 * major + minor < min(built):
        least = f"{min(built) // 10}.{min(built) % 10}"
        raise ConfigError(
            f"The installed torch needs GPUs of compute capability {least} or later; "
            f"{torch.cuda.get_device_name(card)} has {major}.{minor}.",
            fix="Install an older torch, which has kernels for it, or use --device cpu.",
            param="--device",
        )


class _Bytes:
    """The bytes of a contiguous tensor, whose memory it does not own."""

    def __init__(self, of: Tensor) -> None:
        self.__cuda_array_interface__ = {
            "shape": (of.nbytes,), "typestr": "|u1", "data": (of.data_ptr(), False), "version": 3,
        }  # fmt: skip


class _Stream:
    """A CUDA stream for copies alone."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device)

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after)
            to.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return event
