"""A linear layer."""

from __future__ import annotations

from dataclasses import KW_ONLY

from quire.core.dtypes import FLOAT32
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.lora import LoraTable
from quire.ops.weights import LinearWeight
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """epilogue(x @ weight.T + bias), in the form that the provider's `pack_linear` made.

    Attributes:
        adapters: what requests may add to it; the epilogue is none then.
        summed: each rank has a part of the columns, and of x. The ranks' parts, those of adapters
            too, are added in float32 and rounded once, so that all ranks get the same bits.
        run: each rank has some of all rows, (first, all); every rank gets the results of all, with
            the bits that one rank alone would compute.
    """

    weight: LinearWeight
    adapters: LoraTable | None = None
    _: KW_ONLY
    summed: bool = False
    run: tuple[int, int] | None = None

    def forward(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, out] for [T, in]; `adapter` is that of `Ops.lora_add`."""
        y = ops.linear(x, self.weight, *((FLOAT32,) if self.summed else ()))
        if adapter is not None and self.adapters is not None:
            y = ops.lora_add(adapter, y, x, self.adapters)
        return ops.all_reduce(y, x.dtype) if self.summed else self._whole(ops, y)

    def logits(self, ops: Ops, x: Array) -> Array:
        """Return float32 [N, out] for [N, in], with the rows of all ranks."""
        return self._whole(ops, ops.logits(x, self.weight))

    def _whole(self, ops: Ops, y: Array) -> Array:
        return y if self.run is None else ops.all_gather(y, *self.run)
