"""Weights on the device, in the forms that the kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from quire.core.quantized import E2M1, QuantizedWeight, can_follow, joined
from quire.ops.torch_ops import reference
from quire.ops.torch_ops.arrays import tensor
from quire.ops.torch_ops.reference import DenseWeight
from quire.ops.triton import launch
from quire.ops.weights import Epilogue, LinearWeight
from quire.system.records import dataclass

Form = Literal["codes", "e2m1", "zeros", "offsets", "book", "int8", "float8"]
CODED_ROWS: dict[Form, torch.dtype] = {"int8": torch.int8, "float8": torch.float8_e4m3fn}
"""Forms that multiply with rows of their own type; both have one scale per row."""
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
        form: how a code becomes a number; "int8" and "float8" multiply with rows of such numbers.
        scale: [G, N], in the smallest type that holds it exactly.
        numbers: as large, the zero points or offsets; or float32 [2^bits], the codebook; or None.
        factor: float32 [N], multiplies each row's sums; or None.
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
    factor: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.width

    @property
    def nbytes(self) -> int:
        tensors = (self.codes, self.scale, self.numbers, self.factor)
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
        scale = self.scale if self.factor is None else self.scale.float() * self.factor
        values = values * by_column(scale)
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
    parts: Sequence[QuantizedWeight],
    bias: Tensor | None,
    epilogue: Epilogue,
    experts: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> CodedWeight | None:
    """Return the parts as one weight on the device; None if the kernels cannot read them as one."""
    first = parts[0]
    if first.input_scale is not None:  # activations of a fixed scale
        return None
    if first.codebook is not None and (first.zero is not None or first.offset is not None):
        return None
    if not all(can_follow(first, part) for part in parts):
        return None
    whole = joined(parts)
    codes, (scale, factor) = tensor(whole.codes).to(device), _scales(whole, device)
    if codes.dtype == torch.float8_e4m3fn and not launch.card(codes.device).float8:
        return None
    form: Form = "codes"
    numbers = order = None
    if whole.codebook is not None:
        numbers = tensor(whole.codebook).to(device)
        form = "e2m1" if whole.codebook.tolist() == list(E2M1) else "book"
    elif (second := whole.offset if whole.zero is None else whole.zero) is not None:
        numbers = _smallest(tensor(second).to(device).t())
        form = "offsets" if whole.zero is None else "zeros"
    elif whole.group >= whole.shape[1] and whole.permutation is None:
        own = () if whole.float_activations else CODED_ROWS.items()
        form = next((form for form, dtype in own if dtype == codes.dtype), "codes")
    if whole.permutation is not None:
        order = tensor(whole.permutation).to(device)
    width = codes.shape[1]
    halves = codes.dtype == torch.uint8 and whole.bits <= 4
    if halves:
        pairs = pad(codes, (0, -width % (2 * PAIR))).unflatten(1, (-1, 2, PAIR))
        codes = (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)
    return CodedWeight(
        codes.contiguous(), width, halves, form, _smallest(scale.t(), dtype), whole.group, numbers,
        order, bias, epilogue, experts, dtype, factor,
    )  # fmt: skip


def _scales(weight: QuantizedWeight, device: torch.device | None) -> tuple[Tensor, Tensor | None]:
    """Return the scales, and the factors of rows that were taken out of them.

    Scales without their factor have 16 bits, so kernels decode two codes at a time.
    """
    scale = tensor(weight.scale).to(device)
    if weight.factor is None:
        return scale, None
    factor = tensor(weight.factor).to(device)
    exact = (scale / factor[:, None]).to(torch.float8_e4m3fn).float()
    same = (exact * factor[:, None] - scale).abs() <= 2.0**-22 * scale.abs()
    return (exact, factor) if bool(same.all()) else (scale, None)


def _smallest(numbers: Tensor, preferred: torch.dtype = torch.float16) -> Tensor:
    """Return the numbers in the smallest type that holds each of them exactly.

    Args:
        preferred: of two types of 16 bits.
    """
    first = (preferred,) if preferred.itemsize == 2 else ()
    for dtype in (torch.uint8, *first, torch.float16, torch.bfloat16):
        smaller = numbers.to(dtype)
        if torch.equal(smaller.float(), numbers):
            return smaller.contiguous()
    return numbers.contiguous()
