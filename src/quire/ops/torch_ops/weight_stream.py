"""Weights that lie in host memory, copied to the device ahead of their use.

host     [ layer 5 | layer 6 | layer 7 | … ]      one pinned slab, a piece a layer
              │ copies, on a queue of their own
              ▼
device   [ buffer 0 ] [ buffer 1 ]                 the layer in use, and the next one
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from quire.core.dtypes import DType
from quire.ops.device import Event
from quire.ops.torch_ops import reference
from quire.ops.torch_ops.devices import TorchAccelerator
from quire.ops.torch_ops.provider import TorchOps
from quire.ops.torch_ops.reference import DenseWeight, dense_weight
from quire.ops.weights import Epilogue, LinearWeight
from quire.system.records import dataclass


@dataclass(slots=True)
class _Buffer:
    """Device memory for a layer's weights.

    Attributes:
        layer: what it holds, or will once `copied` has come; -1 is nothing.
        used: behind the last use of what it held before, or of its memory before that.
    """

    memory: Tensor
    used: Event
    layer: int = -1
    copied: Event | None = None


class WeightStream:
    """The layers of one slab, asked for round and round in their order.

    A layer that is asked for out of turn (a step that failed is begun again) is copied then.
    A buffer is written once all is computed that was queued while it was in use, and read once its
    copy has come: the device waits for both, never the host.

    Args:
        slab: pinned, uint8.
        pieces: begin and end of each layer in it.
        buffers: most layers on the device at a time, the one in use included; at least 2, unless
            there are fewer layers.
    """

    def __init__(
        self,
        device: TorchAccelerator,
        slab: Tensor,
        pieces: Sequence[tuple[int, int]],
        buffers: int,
    ) -> None:
        self._device = device
        self._layers = [slab[begin:end] for begin, end in pieces]
        self._copies = device.copies()
        size = max(len(layer) for layer in self._layers)
        self._buffers = [
            _Buffer(torch.empty(size, dtype=torch.uint8, device=device.torch), device.record())
            for _ in range(min(buffers, len(pieces)))
        ]
        self._current: _Buffer | None = None

    @property
    def device_bytes(self) -> int:
        return sum(buffer.memory.nbytes for buffer in self._buffers)

    def use(self, layer: int) -> Tensor:
        """Return the layer's bytes on the device, valid until another layer is requested."""
        if self._current is not None and self._current.layer == layer:
            return self._current.memory
        if self._current is not None:
            self._current.used = self._device.record()
        ahead = [(layer + i) % len(self._layers) for i in range(len(self._buffers))]
        buffer = self._hold(layer, ahead)
        for following in ahead[1:]:
            self._hold(following, ahead)
        assert buffer.copied is not None
        self._device.wait(buffer.copied)
        self._current = buffer
        return buffer.memory

    def _hold(self, layer: int, wanted: list[int]) -> _Buffer:
        """Return the buffer that holds `layer`; begin its copy if none does."""
        for buffer in self._buffers:
            if buffer.layer == layer:
                return buffer
        buffer = next(b for b in self._buffers if b.layer not in wanted)
        source = self._layers[layer]
        buffer.copied = self._copies.copy(buffer.memory[: len(source)], source, buffer.used)
        buffer.layer = layer
        return buffer


@dataclass(frozen=True, slots=True, eq=False)
class StreamedWeight:
    """A `DenseWeight` [out, in] whose numbers lie in host memory, `begin` bytes into its layer's
    piece; the bias is on the device."""

    stream: WeightStream
    layer: int
    begin: int
    shape: tuple[int, int]
    dtype: torch.dtype
    bias: Tensor | None
    epilogue: Epilogue

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def on_device(self) -> DenseWeight:
        """Return the weight on the device; use it before requesting another layer's."""
        memory = self.stream.use(self.layer)[self.begin : self.begin + self.nbytes]
        return DenseWeight(memory.view(self.dtype).view(self.shape), self.bias, self.epilogue)


class Slab:
    """Pinned host memory that a model's last layers are moved to as they are loaded.

    Args:
        layers: bytes of each layer's weights, every weight rounded up to `alignment`.
        alignment: bytes; a multiple of 16, of which products read so many at once.
        buffers: see `WeightStream`.
    """

    def __init__(
        self, device: TorchAccelerator, layers: Sequence[int], *, alignment: int, buffers: int
    ) -> None:
        ends = list(accumulate(layers))
        self._memory = device.pinned(ends[-1])
        self._pieces = list(zip([0, *ends], ends, strict=False))
        self._next = [begin for begin, _ in self._pieces]
        self._alignment = alignment
        self.stream = WeightStream(device, self._memory, self._pieces, buffers)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def move(self, layer: int, packed: LinearWeight) -> StreamedWeight:
        """Copy a weight to the next place of its layer; what it lay in before may be freed.

        Raises:
            ValueError: the layer has no room left for it.
        """
        weight = dense_weight(packed)
        w, at = weight.weight, self._next[layer]
        begin, end = self._pieces[layer]
        if at + w.nbytes > end:
            raise ValueError(f"{w.nbytes} bytes at {at} do not fit into layer {layer}, to {end}")
        place = self._memory[at : at + w.nbytes].view(w.dtype).view(w.shape)
        place.copy_(w)
        self._next[layer] = at - (-w.nbytes // self._alignment) * self._alignment
        return StreamedWeight(
            self.stream,
            layer,
            at - begin,
            (w.shape[0], w.shape[1]),
            w.dtype,
            weight.bias,
            weight.epilogue,
        )


class StreamingOps(TorchOps):
    """The operations of a device in torch, which take weights out of a slab as well."""

    def linear(self, x: Tensor, packed: LinearWeight, dtype: DType | None = None) -> Tensor:
        weight = packed.on_device() if isinstance(packed, StreamedWeight) else packed
        return reference.linear(x, weight, dtype)
