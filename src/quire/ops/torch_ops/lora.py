"""What low-rank adapters add to a layer, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.core.dtypes import DType, HostArray
from quire.ops.lora import LoraTable
from quire.ops.torch_ops.arrays import tensor
from quire.ops.torch_ops.reference import DenseWeight, linear


class TensorTable(LoraTable):
    """A `LoraTable` whose adapters are on a device of torch."""

    def __init__(
        self, columns: int, parts: Sequence[int], adapters: int, dtype: DType, device: torch.device
    ) -> None:
        super().__init__(columns, parts, adapters, dtype)
        self._device = device

    def _placed(self, values: HostArray) -> Tensor:
        return tensor(values).to(self._device)


def lora_add(adapter: Tensor, y: Tensor, x: Tensor, table: LoraTable) -> Tensor:
    """Add scale · B[i] @ (A[i] @ x) to y in place, i being each row's adapter (Hu et al. 2021).

    Args:
        adapter: int64 [T], numbers in `table`; -1 leaves its row as it is. Or [0]: all rows are
            left as they are.
        y: [T, N], what the layer gives without adapters, in the model's dtype or float32.
        x: [T, K], what went into the layer.

    Returns:
        y. Sums are float32, and the result is rounded once.
    """
    for index in adapter[adapter >= 0].unique().tolist():
        rows = (adapter == index).nonzero()[:, 0]
        for part, end in enumerate(table.ends):
            held = table.get(index, part)
            if held is None:
                continue
            a, b, scale = held
            columns = slice(end - table.parts[part], end)
            low = linear(x[rows].float(), DenseWeight(a.float(), None, "none")) * scale
            high = linear(low, DenseWeight(b.float().t().contiguous(), None, "none"))
            y[rows, columns] = (y[rows, columns].float() + high).to(y.dtype)
    return y
