"""Bytes of quantized weights once the native kernels have packed them, from their forms alone;
torch-free. `ops.native.quantized` makes these choices from the weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.core.quantization import Form
from quire.models.parameters import Parameter
from quire.system.records import dataclass

_GROUPS = (128, 64, 32, 16)
_BITS = (2, 3, 4, 5, 6, 8)
_LONGEST_INT8 = 1 << 16
"""Columns up to which rows of int8 are multiplied whole."""


def packed_bytes(parameter: Parameter, forms: Sequence[Form | None], item: int) -> int:
    """Return the bytes of a linear weight whose parts have these forms; `item` is the bytes of an
    element if no kernel multiplies them as stored.
    """
    rows, columns = padded_rows(parameter), parameter.shape[1]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return parameter.numel * item
    if len(set(known)) == 1:
        whole = _row_bytes(known[0], columns)
        if whole is not None:
            return rows * whole
    codes = [_codes(form, columns) for form in known]
    found = [code for code in codes if code is not None]
    if len(found) < len(codes):
        return parameter.numel * item
    return _together(found).bytes(rows, columns)


def coded_bytes(parameter: Parameter, forms: Sequence[Form | None], item: int) -> int:
    """Return the most bytes of a linear weight as `ops.triton` stores it."""
    first = forms[0]
    if first is None or any(form != first for form in forms):
        return parameter.numel * item
    columns = parameter.shape[1]
    halved = first.codes == "uint8" and first.bits <= 4
    row = round_up(columns, 128) // 2 if halved else columns
    groups = -(-columns // first.group) * (2 if first.second else 1)
    return parameter.numel // columns * (row + 4 * groups)


def decoded_elements(parameter: Parameter, forms: Sequence[Form | None]) -> int:
    """Return the elements of a weight that `ops.triton` decodes whole for steps of many rows; 0 if
    it does not: of experts, of dense weights, and of 8-bit ones that multiply 8-bit rows."""
    first = forms[0]
    if parameter.experts > 1 or first is None or any(form != first for form in forms):
        return 0
    plain = not (first.second or first.codebook or first.permuted or first.float_activations)
    by_row = plain and first.codes != "uint8" and first.group >= parameter.shape[1]
    return 0 if by_row else parameter.numel


def rounds_activations(forms: Sequence[Form | None], columns: int) -> bool:
    """Return whether products with a weight whose parts have these forms round x to 8 bits."""
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return False
    if len(set(known)) == 1 and _row_bytes(known[0], columns) is not None:
        return known[0].codes == "int8" and not known[0].float_activations
    return all(_codes(form, columns) is not None for form in known)


def padded_rows(parameter: Parameter) -> int:
    """Return the rows padded to blocks of 32 (16 of gate and 16 of up in a merged weight), for each
    expert separately.
    """
    count = max(1, parameter.experts)
    rows = parameter.shape[0] // count
    return count * (2 * round_up(rows // 2, 16) if parameter.gated else round_up(rows, 32))


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def _row_bytes(form: Form, columns: int) -> int | None:
    """Return the bytes of a row with float32 scales; None for other codes."""
    if form.codes not in ("uint8", "int8"):
        if form.group >= columns:
            return round_up(columns, 32) + 4
        size = next((size for size in (128, 64, 32) if form.group % size == 0), None)
        return None if size is None else round_up(columns, 32) + 4 * -(-columns // size)
    plain = form.codes == "int8" and form.bits == 8 and not form.second and not form.codebook
    if not plain or form.group < columns or columns > _LONGEST_INT8:
        return None
    return round_up(columns, 32 if form.float_activations else 64) + 8


@dataclass(frozen=True, slots=True)
class _Codes:
    """`second` is "zero" or "offset" where groups have one of their own; else `zero` is of all."""

    bits: int
    group: int
    second: str
    zero: int
    codebook: str
    permuted: bool

    def bytes(self, rows: int, columns: int) -> int:
        groups = -(-columns // self.group)
        head = 4 if self.second else 2
        size = rows * (groups * (self.group * self.bits // 8 + head) + 4)
        return size + (16 if self.codebook else 0) + (4 * columns if self.permuted else 0)


def _codes(form: Form, columns: int) -> _Codes | None:
    """Return the packed form of a weight's codes; None if no kernel has it."""
    if form.codes not in ("uint8", "int8"):
        return None
    if form.group >= columns:
        group = next((size for size in reversed(_GROUPS) if size >= columns), _GROUPS[0])
    else:
        group = next((size for size in _GROUPS if form.group % size == 0), 0)
    if not group:
        return None
    bits = next(bits for bits in _BITS if bits >= form.bits)
    second = form.second if form.second in ("zero", "offset") else ""
    middle = form.second == "middle" or (form.codes == "int8" and not second)
    zero = 1 << (form.bits - 1) if middle else 0
    return _Codes(bits, group, second, zero, form.codebook, form.permuted)


def _together(parts: list[_Codes]) -> _Codes:
    """Return the narrowest form that holds all parts."""
    if len({part.codebook for part in parts}) > 1:
        parts = [replace(part, bits=8, codebook="") if part.codebook else part for part in parts]
    seconds = {part.second for part in parts}
    if "offset" in seconds:
        second = "offset"
    else:
        second = "zero" if "zero" in seconds or len({part.zero for part in parts}) > 1 else ""
    return replace(
        parts[0],
        bits=max(part.bits for part in parts),
        group=min(part.group for part in parts),
        second=second,
    )
