"""An Apple GPU, by torch's MPS (Metal performance shaders).

It computes the reference ops. Nothing of it has run on such a GPU: the fake device of the tests
lacks the types that this one lacks, and a stand-in checks the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.core.errors import ConfigError
from quire.ops.device import Event
from quire.ops.graphs import Graph
from quire.ops.torch_ops.devices import CopyQueue, TorchAccelerator

LACKS = frozenset({torch.float64, torch.float8_e4m3fn, torch.float8_e5m2})
"""Types that Metal has no arithmetic for, and torch no tensors of."""


class MetalDevice(TorchAccelerator):
    """The GPU of an Apple chip. It shares the CPU's memory, and has one queue.

    Raises:
        ConfigError: torch does not see it.
    """

    lacks = LACKS

    def __init__(self) -> None:
        if not torch.backends.mps.is_available():
            raise ConfigError(
                "--device is mps, but torch sees no GPU of Apple's.",
                fix="Use macOS 14 or later on an Apple chip, or --device cpu.",
                param="--device",
            )
        self.torch = torch.device("mps")

    def pinned(self, nbytes: int) -> Tensor:
        """Memory of the host; the GPU reads it where it lies."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def record(self) -> Event:
        event = torch.mps.Event()
        event.record()
        return event

    def wait(self, event: Any) -> None:
        event.wait()

    def capture(self, work: Callable[[], object], reserve: int = 0) -> Graph:
        raise NotImplementedError("torch records no graphs on Metal, and no op asks for one")

    def seconds(self, work: Callable[[], object]) -> float:
        start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def copies(self) -> CopyQueue:
        raise NotImplementedError("weights are not offloaded: the memory is the CPU's")

    def memory(self) -> tuple[int, int]:
        used = int(torch.mps.driver_allocated_memory())
        return used, int(torch.mps.recommended_max_memory())
