"""Quantized weights as the kernels hold them: codes of so many bits in groups of a few sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from quire.core.dtypes import FLOAT8, HostArray
from quire.core.quantized import QuantizedWeight, same
from quire.system.records import dataclass

GROUPS = (128, 64, 32, 16)
CodeKind = Literal["u2", "u3", "u4", "u4_book", "u5", "u6", "u8"]
_KINDS: dict[int, CodeKind] = {2: "u2", 3: "u3", 4: "u4", 5: "u5", 6: "u6", 8: "u8"}
BITS = tuple(_KINDS)


@dataclass(frozen=True, slots=True, eq=False)
class GroupedCodes:
    """W[n, c(k)] = (code − zero) · scale + offset of the group of k.

    Attributes:
        codes: uint8 [N, K], below 2^bits; where there is a codebook, indices of its entries.
        bits: one of `BITS`.
        group: one of `GROUPS`.
        scale: float32 [N, G], G = ceil(K / group).
        zero: of all groups; 0 where `zeros` has one for each.
        zeros: float32 [N, G]; or None.
        offsets: float32 [N, G]; or None. Not together with `zeros`.
        codebook: uint8 [16], of 4 bits; or None.
        permutation: int32 [K]: c(k); or None.
        input_scale: of static int8 activations; 0 where each row has its own.
    """

    codes: HostArray
    bits: int
    group: int
    scale: HostArray
    zero: int = 0
    zeros: HostArray | None = None
    offsets: HostArray | None = None
    codebook: HostArray | None = None
    permutation: HostArray | None = None
    input_scale: float = 0.0

    @property
    def kind(self) -> CodeKind:
        return "u4_book" if self.codebook is not None else _KINDS[self.bits]


def grouped_codes(weight: QuantizedWeight) -> GroupedCodes | None:
    """Return the weight in groups that kernels have; None for 8-bit floats and other group sizes.

    A codebook whose entries are no small multiples of one number is rounded to bytes: the error is
    at most 1/254 of its largest entry.
    """
    if weight.codes.dtype in FLOAT8:
        return None
    group = _group(weight)
    if group is None:
        return None
    codes, scale, zero, book = weight.codes, weight.scale, 0, None
    zeros, offsets = weight.zero, weight.offset
    bits = next(bits for bits in BITS if bits >= weight.bits)
    if weight.codebook is not None:
        if weight.bits > 4 or zeros is not None or codes.dtype != np.uint8:
            return None
        book, zero, unit = _bytes_of(weight.codebook)
        bits, scale = 4, scale * unit
    elif codes.dtype == np.int8:
        zero = 1 << (weight.bits - 1)
        codes = codes.view(np.uint8) + np.uint8(zero)  # modulo 256
        if offsets is not None:
            offsets, zero = offsets - zero * scale, 0
    if zeros is not None:
        zeros, zero = _common(zeros + zero)
    found = GroupedCodes(
        codes, bits, weight.group, scale, zero, zeros, offsets, book,
        None if weight.permutation is None else weight.permutation.astype(np.int32),
        weight.input_scale or 0.0,
    )  # fmt: skip
    return _regrouped(found, group)


def int8_rows(weight: QuantizedWeight) -> tuple[HostArray, HostArray] | None:
    """Return int8 codes [N, K] in the weight's order of columns, and their scales [N].

    None if W is more than their product, or sums of products could exceed 32 bits.
    """
    if weight.scale.shape[1] != 1 or weight.bits != 8 or weight.shape[1] > 1 << 16:
        return None
    if weight.codebook is not None or weight.offset is not None:
        return None
    codes, zero = weight.codes, weight.zero
    if codes.dtype == np.uint8:
        if zero is None or not bool((zero == 128).all()):
            return None
        codes = (codes + np.uint8(128)).view(np.int8)  # modulo 256
    elif codes.dtype != np.int8 or (zero is not None and bool(zero.any())):
        return None
    if weight.permutation is not None:
        ordered = np.empty_like(codes)
        ordered[:, weight.permutation] = codes
        codes = ordered
    return codes, weight.scale[:, 0]


def together(parts: Sequence[GroupedCodes]) -> GroupedCodes | None:
    """Return the rows of all parts in order, in the narrowest form that holds each of them.

    None where they want x in different orders or units.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.input_scale != first.input_scale:
            return None
        if not same(part.permutation, first.permutation):
            return None
    if any(not same(part.codebook, first.codebook) for part in parts[1:]):
        parts = [_without_book(part) for part in parts]
    bits = max(part.bits for part in parts)
    group = min(part.group for part in parts)
    parts = _alike([_regrouped(part, group) for part in parts])

    def rows(name: str) -> HostArray | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)

    codes, scale = rows("codes"), rows("scale")
    assert codes is not None
    assert scale is not None
    return replace(
        parts[0], codes=codes, bits=bits, scale=scale, zeros=rows("zeros"), offsets=rows("offsets")
    )


def _group(weight: QuantizedWeight) -> int | None:
    """Return the largest group size of the kernels that divides the weight's; None if none does."""
    k = weight.shape[1]
    if weight.scale.shape[1] == 1:
        return next((group for group in reversed(GROUPS) if group >= k), GROUPS[0])
    return next((group for group in GROUPS if weight.group % group == 0), None)


def _regrouped(codes: GroupedCodes, group: int) -> GroupedCodes:
    """Return the codes with smaller groups; one group of all columns is cut into several."""
    count = -(-codes.codes.shape[1] // group)

    def spread(of_groups: HostArray | None) -> HostArray | None:
        if of_groups is None:
            return None
        whole = of_groups.shape[1] == 1
        times = count if whole else codes.group // group
        return np.repeat(of_groups, times, axis=1)[:, :count]

    scale = spread(codes.scale)
    assert scale is not None
    return replace(
        codes, group=group, scale=scale, zeros=spread(codes.zeros), offsets=spread(codes.offsets)
    )


def _common(zeros: HostArray) -> tuple[HostArray | None, int]:
    """Return the zero points, or the single one that all of them are."""
    one = float(zeros.flat[0])
    if one.is_integer() and abs(one) < 1024 and bool((zeros == one).all()):
        return None, int(one)
    return zeros, 0


def _bytes_of(codebook: HostArray) -> tuple[HostArray, int, float]:
    """Return bytes, zero and unit so that codebook ≈ (bytes − zero) · unit; exact if possible."""
    wide = codebook.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    for unit in (1.0, 0.5, 0.25, 0.125):
        whole = wide / unit
        if bool((whole == whole.round()).all()) and (high - low) / unit <= 255:
            break
    else:
        unit = max(-low, high) / 127
        whole = (wide / unit).round()
    # A power of two: −zero · scale, an offset where parts are merged, is then as short as scale.
    least = int(-whole.min())
    zero = 1 << (least - 1).bit_length() if least > 0 else least
    if zero + int(whole.max()) > 255:
        zero = least
    entries = np.zeros(16, np.uint8)
    entries[: len(codebook)] = (whole + zero).astype(np.uint8)
    return entries, zero, unit


def _without_book(part: GroupedCodes) -> GroupedCodes:
    if part.codebook is None:
        return part
    codes = part.codebook[part.codes]
    return replace(part, codes=codes, bits=8, codebook=None)


def _alike(parts: list[GroupedCodes]) -> list[GroupedCodes]:
    """Return the parts with one zero, or else all with zero points, or all with offsets."""
    if any(part.offsets is not None for part in parts):
        return [_with_offsets(part) for part in parts]
    if any(part.zeros is not None or part.zero != parts[0].zero for part in parts):
        return [_with_zeros(part) for part in parts]
    return parts


def _with_zeros(part: GroupedCodes) -> GroupedCodes:
    if part.zeros is not None:
        return part
    return replace(part, zeros=np.full_like(part.scale, part.zero), zero=0)


def _with_offsets(part: GroupedCodes) -> GroupedCodes:
    if part.offsets is not None and part.zero == 0:
        return part
    zeros = part.zero if part.zeros is None else part.zeros
    offsets = -zeros * part.scale + (0.0 if part.offsets is None else part.offsets)
    return replace(part, zero=0, zeros=None, offsets=offsets)
