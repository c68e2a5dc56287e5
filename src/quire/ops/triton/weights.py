"""Weights on the device, in the forms that the kernels read."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from quire.core.quantized import E2M1
from quire.ops.torch_ops import reference
from quire.ops.torch_ops.quantized import QuantizedWeight
from quire.ops.torch_ops.reference import DenseWeight
from quire.ops.triton.launch import has_float8
from quire.ops.weights import Epilogue, LinearWeight
from quire.system.records import dataclass

Form = Literal["codes", "e2m1", "zeros", "offsets", "book", "int8"]
PAIR = 64
"""A byte of two 4-bit codes has those of columns that lie so far apart."""


@dataclass(frozen=True, slots=True, eq=False)
class CodedWeight:
    """A quantized weight: `core.quantized.QuantizedWeight` on the device.

    Attributes:
        codes: [N, K] of 8 bits; or uint8 [N, 64 · ceil(K / 128)], of 128 columns the first 64 in
            the low halves.
        width: K.
        halves: a byte of `codes` has two columns.
        form: how a code becomes a number; "int8" multiplies with rows of 8-bit integers.
        scale: [G, N], in the smallest type that holds it exactly.
        numbers: as large, the zero points or offsets; or float32 [2^bits], the codebook; or None.
        columns: int64 [K], the column of x that column k multiplies; None if they are in order.
        dtype: of rows that are looked up.
    """

    codes: Tensor
    width: int
    halves: bool
    form: Form
    scale: Tensor
    group: int
    numbers: Tensor | None
    columns: Tensor | None
    bias: Tensor | None
    epilogue: Epilogue
    experts: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.width

    @property
    def nbytes(self) -> int:
        tensors = (self.codes, self.scale, self.numbers)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows `ids` (int64 [T]) as numbers: [T, K] of `dtype`."""
        codes = self.codes.view(torch.uint8)[ids].view(self.codes.dtype)  # 8-bit floats too
        if self.halves:
            pairs = codes.unflatten(1, (-1, PAIR))
            codes = torch.cat((pairs & 15, pairs >> 4), 2).flatten(1)[:, : self.width]

        def by_column(numbers: Tensor) -> Tensor:
            return numbers[:, ids].t().repeat_interleave(self.group, dim=1)[:, : codes.shape[1]]

        numbers = self.numbers
        looked_up = self.form in ("book", "e2m1")
        values = _looked_up(numbers, codes) if looked_up else codes.float()
        if self.form == "zeros" and numbers is not None:
            values = values - by_column(numbers)
        values = values * by_column(self.scale)
        if self.form == "offsets" and numbers is not None:
            values = values + by_column(numbers)
        if self.columns is not None:
            values = torch.empty_like(values).index_copy_(1, self.columns, values)
        return values.to(self.dtype)


def _looked_up(codebook: Tensor | None, codes: Tensor) -> Tensor:
    assert codebook is not None
    return codebook[codes.to(torch.int64)]


DeviceWeight = DenseWeight | CodedWeight


def device_weight(packed: LinearWeight) -> DeviceWeight:
    """Return a weight of this provider. Raises TypeError for another provider's."""
    if not isinstance(packed, DeviceWeight):
        raise TypeError(f"Triton has no product with a {type(packed).__name__}")
    return packed


def embedding(ids: Tensor, table: Tensor | LinearWeight) -> Tensor:
    """See `reference.embedding`."""
    if isinstance(table, CodedWeight):
        return table.rows(ids)
    return reference.embedding(ids, table)


def vocab_embedding(ids: Tensor, table: Tensor | LinearWeight, first: int, vocab: int) -> Tensor:
    """See `reference.vocab_embedding`; one rank has all rows."""
    return embedding(ids, table)


def coded(
    parts: list[QuantizedWeight],
    bias: Tensor | None,
    epilogue: Epilogue,
    experts: int,
    dtype: torch.dtype,
) -> CodedWeight | None:
    """Return the parts as one weight; None if the kernels cannot read them as one."""
    first = parts[0]
    if not all(_alike(first, part) for part in parts):
        return None
    if first.input_scale is not None:  # activations of a fixed scale
        return None
    if first.codes.dtype == torch.float8_e4m3fn and not has_float8(first.codes.device):
        return None
    codes = torch.cat([part.codes for part in parts])
    scale = _smallest(torch.cat([part.scale for part in parts]).t())
    zeros = _joined([part.zero for part in parts])
    offsets = _joined([part.offset for part in parts])
    form: Form
    numbers: Tensor | None
    if first.codebook is not None:
        if zeros is not None or offsets is not None:
            return None
        form, numbers = "book", first.codebook
        if first.codebook.tolist() == list(E2M1):
            form = "e2m1"
    elif zeros is not None:
        form, numbers = "zeros", zeros
    elif offsets is not None:
        form, numbers = "offsets", offsets
    else:
        by_row = first.group >= codes.shape[1] and codes.dtype == torch.int8
        whole = by_row and not first.float_activations and first.permutation is None
        form, numbers = ("int8" if whole else "codes"), None
    width = codes.shape[1]
    halves = codes.dtype == torch.uint8 and first.bits <= 4
    if halves:
        pairs = pad(codes, (0, -width % (2 * PAIR))).unflatten(1, (-1, 2, PAIR))
        codes = (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)
    return CodedWeight(
        codes.contiguous(), width, halves, form, scale, first.group, numbers,
        first.permutation, bias, epilogue, experts, dtype,
    )  # fmt: skip


def _alike(a: QuantizedWeight, b: QuantizedWeight) -> bool:
    """Return whether rows of b may follow those of a."""

    def same(x: Tensor | None, y: Tensor | None) -> bool:
        return x is y or (x is not None and y is not None and torch.equal(x, y))

    return (
        (a.bits, a.group, a.codes.dtype, a.float_activations, a.input_scale)
        == (b.bits, b.group, b.codes.dtype, b.float_activations, b.input_scale)
        and (a.zero is None, a.offset is None) == (b.zero is None, b.offset is None)
        and same(a.codebook, b.codebook)
        and same(a.permutation, b.permutation)
    )


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return _smallest(torch.cat(given).t()) if given else None


def _smallest(numbers: Tensor) -> Tensor:
    """Return the numbers in the smallest type that holds each of them exactly."""
    for dtype in (torch.uint8, torch.float16, torch.bfloat16):
        smaller = numbers.to(dtype)
        if torch.equal(smaller.float(), numbers):
            return smaller.contiguous()
    return numbers.contiguous()
