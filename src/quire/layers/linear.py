"""A linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.ops.lora import LoraTable
from quire.ops.table import LinearWeight, OpTable


class Linear:
    """epilogue(x @ weight.T + bias), in the form that the provider's `pack_linear` made.

    `adapters` are what requests may add to it; the epilogue is none then.
    """

    __slots__ = ("adapters", "weight")

    def __init__(self, weight: LinearWeight, adapters: LoraTable | None = None) -> None:
        self.weight = weight
        self.adapters = adapters

    def forward(self, ops: OpTable, x: Tensor, adapter: Tensor | None = None) -> Tensor:
        """[T, in] → [T, out]; `adapter` as in `ops.lora.lora_add`."""
        y = ops.linear(x, self.weight)
        if adapter is None or self.adapters is None:
            return y
        return ops.lora_add(adapter, y, x, self.adapters)

    def logits(self, ops: OpTable, x: Tensor) -> Tensor:
        """[N, in] → float32 [N, out]."""
        return ops.logits(x, self.weight)


class RowParallelLinear(Linear):
    """A linear layer of whose inputs, and columns of `weight`, each rank has its own.

    Every rank gets the whole product, all the same bits: the ranks' parts, those of adapters too,
    added up in float32, and rounded once.
    """

    __slots__ = ()

    def forward(self, ops: OpTable, x: Tensor, adapter: Tensor | None = None) -> Tensor:
        """[T, in / ranks] → [T, out]."""
        y = ops.linear(x, self.weight, torch.float32)
        if adapter is not None and self.adapters is not None:
            y = ops.lora_add(adapter, y, x, self.adapters)
        return ops.all_reduce(y, x.dtype)


class VocabParallelLinear(Linear):
    """An output projection of whose rows, one a token, each rank has a run.

    Every rank gets all logits, which have the bits that one rank alone would compute.
    """

    __slots__ = ("first", "vocab_size")

    def __init__(self, weight: LinearWeight, first: int, vocab_size: int) -> None:
        super().__init__(weight)
        self.first = first
        self.vocab_size = vocab_size

    def logits(self, ops: OpTable, x: Tensor) -> Tensor:
        """[N, in] → float32 [N, vocab]."""
        return ops.all_gather(ops.logits(x, self.weight), self.first, self.vocab_size)
