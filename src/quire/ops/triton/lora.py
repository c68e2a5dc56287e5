"""Launches of what low-rank adapters add to a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.core.dtypes import DType, HostArray
from quire.ops.lora import LoraTable
from quire.ops.torch_ops.lora import TensorTable
from quire.ops.triton.kernels import lora as kernels
from quire.ops.triton.launch import COMPUTE, power_of_two

ROWS = 16
"""Rows of a tile: few, because each adapter among them is a product."""
COLUMNS = 64
DEPTH = 64
SEGMENT = 1024


class PointerTable(TensorTable):
    """A `LoraTable` whose kernels find adapters by their addresses.

    Attributes:
        pointers: int64 [adapters, parts, 3] on the device: A, B and the rank.
        scales: float32 [adapters, parts].
    """

    def __init__(
        self,
        columns: int,
        parts: Sequence[int],
        adapters: int,
        dtype: DType,
        device: torch.device,
    ) -> None:
        super().__init__(columns, parts, adapters, dtype, device)
        self.pointers = torch.zeros((adapters, len(parts), 3), dtype=torch.int64, device=device)
        self.scales = torch.zeros((adapters, len(parts)), dtype=torch.float32, device=device)

    @property
    def rank(self) -> int:
        """Return the largest rank that was set."""
        return int(self.entries["rank"].max(initial=0))

    def set(self, adapter: int, part: int, a: HostArray, b: HostArray, scale: float) -> None:
        super().set(adapter, part, a, b, scale)
        held = self.get(adapter, part)
        assert held is not None
        found = torch.tensor([held[0].data_ptr(), held[1].data_ptr(), len(a)])
        self.pointers[adapter, part] = found.to(self.pointers.device)
        self.scales[adapter, part] = scale

    def clear(self, adapter: int) -> None:
        super().clear(adapter)
        self.pointers[adapter] = 0


def lora_add(adapter: Tensor, y: Tensor, x: Tensor, table: LoraTable) -> Tensor:
    """See `torch_ops.lora.lora_add`."""
    assert isinstance(table, PointerTable)
    rows, parts = len(adapter), len(table.parts)
    if not rows or not table.rank:
        return y
    block_r = max(power_of_two(table.rank), 16)
    tiles, segments = -(-rows // ROWS), -(-table.columns // SEGMENT)
    low = torch.empty((segments, rows, parts, block_r), dtype=torch.float32, device=x.device)
    given = {"kind": COMPUTE[x.dtype], "block_m": ROWS, "block_r": block_r}
    kernels.shrink[(tiles, parts, segments)](
        adapter, x, table.pointers, low, rows, table.columns, x.stride(0), parts,
        segment=SEGMENT, block_k=DEPTH, enable_fp_fusion=False, **given,
    )  # fmt: skip
    ends = (*table.ends, *[table.ends[-1]] * 3)
    kernels.expand[(tiles, -(-max(table.parts) // COLUMNS), parts)](
        adapter, low, table.pointers, table.scales, y, rows, y.stride(0), segments, parts,
        *ends[:3], ends[-1], block_n=COLUMNS, enable_fp_fusion=False, **given,
    )  # fmt: skip
    return y
