"""Weights in pinned host memory, for a device with its own memory (`--cpu-offload-gb`)."""

from __future__ import annotations

import logging

from quire.core.config import EngineConfig
from quire.models.weights.offload import HOST_ALIGNMENT, LAYERS_AHEAD, OffloadPlan, layer_of
from quire.ops.device import Accelerator
from quire.ops.torch_ops.devices import TorchAccelerator
from quire.ops.torch_ops.weight_stream import Slab, StreamingOps
from quire.ops.weights import LinearWeight

logger = logging.getLogger(__name__)


class HostOffload(OffloadPlan):
    """The last layers' linear weights in one slab of host memory, no larger than was asked for.

    Two layers' worth of them are on the device at a time (`ops.torch_ops.weight_stream`).
    """

    def __init__(self, config: EngineConfig, device: Accelerator) -> None:
        super().__init__(config)
        assert isinstance(device, TorchAccelerator)
        self._index = {layer: index for index, layer in enumerate(self.layers)}
        sizes = list(self.layers.values())
        self._slab = Slab(device, sizes, alignment=HOST_ALIGNMENT, buffers=LAYERS_AHEAD)
        logger.info(
            "weights: %.2f GiB of the last layers lie in host memory, %.2f GiB of them at a time "
            "on the device",
            self.moved_bytes / 2**30, self._slab.stream.device_bytes / 2**30,
        )  # fmt: skip

    @property
    def moved_bytes(self) -> int:
        return self._slab.nbytes

    def ops(self, device: Accelerator) -> StreamingOps:
        """Return operations that take these weights too."""
        return StreamingOps(device)

    def place(self, name: str, packed: LinearWeight) -> LinearWeight:
        """Move a weight that was just packed to host memory, if it is one of these."""
        if name not in self.weights:
            return packed
        return self._slab.move(self._index[layer_of(name)], packed)
