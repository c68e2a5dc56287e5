"""Unpack codes from words and bytes, and convert the small float formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.dtypes import converted, finfo

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[Any]


def unpack_rows(words: Words, bits: int, columns: int) -> Codes:
    """Return codes [R, columns] from int32 [R, W]: each row is a stream of codes of `bits`, lowest
    bits first."""
    words = np.ascontiguousarray(words)
    rows = words.shape[0]
    if bits == 8:
        return words.view(np.uint8).reshape(rows, -1)[:, :columns]
    if bits == 4:
        return nibbles(words.view(np.uint8).reshape(rows, -1))[:, :columns]
    # Other sizes repeat after 32 codes, which take as many words as a code has bits.
    periods = -(-columns // 32)
    stream = np.zeros((rows, periods * bits), np.uint32)
    held = min(stream.shape[1], words.shape[1])
    stream[:, :held] = words.view(np.uint32)[:, :held]
    by_period = stream.reshape(rows, periods, bits)
    codes = np.empty((rows, periods, 32), np.uint8)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        code = by_period[:, :, word] >> shift
        if shift + bits > 32:
            code = code | (by_period[:, :, word + 1] << (32 - shift))
        codes[:, :, i] = code & ((1 << bits) - 1)
    return codes.reshape(rows, -1)[:, :columns]


def nibbles(packed: Codes) -> Codes:
    """Return [R, 2B] from [R, B]: each byte's low half, then its high half."""
    wide = packed.astype(np.uint16)
    # Both halves in one operation on a 16-bit lane: its low byte is the first code.
    return ((wide | (wide << 4)) & 0x0F0F).astype("<u2").view(np.uint8)


def permutation_of(g_idx: Words | None, group: int, columns: int) -> npt.NDArray[np.int64] | None:
    """Return the columns in the order of their groups, `g_idx` [K]; None if they are in order.

    Raises:
        ValueError: a group does not have `group` columns.
    """
    in_order = np.arange(columns) // group
    if g_idx is None or np.array_equal(g_idx, in_order):
        return None
    order = np.argsort(g_idx, kind="stable")
    if not np.array_equal(g_idx[order], in_order):
        raise ValueError(f"g_idx does not put {group} columns into each group")
    return order.astype(np.int64)


def float32(values: npt.NDArray[Any], dtype: str) -> Floats:
    """Return values of a safetensors dtype as float32, exactly."""
    if dtype in ("F8_E8M0", "U8"):
        return e8m0(values)
    return converted(values, np.dtype(np.float32))


def e8m0(exponents: npt.NDArray[Any]) -> Floats:
    """Return the powers of two that bytes represent, with a bias of 127; 255 is NaN."""
    scale = np.ldexp(np.float32(1), np.minimum(exponents, 254).astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32("nan"), scale.astype(np.float32))


def float8(x: Floats, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Round to 8-bit floats, ties to even; no |x| may be above the format's largest number.

    If x fits a cache, it takes less than half the time of the cast in ml_dtypes.
    """
    info = finfo(dtype)
    shift = 23 - info.nmant
    size = np.abs(x)
    bits = size.view(np.uint32)
    codes = (bits >> shift) & 1
    codes += bits
    codes += (1 << (shift - 1)) - 1
    codes >>= shift
    codes -= (126 + info.minexp) << info.nmant
    # The sum's last bit is the subnormals' step, so the addition rounds to a multiple of it.
    magic = np.float32(2.0 ** (info.minexp - info.nmant + 23))
    subnormal = (size + magic).view(np.uint32) - magic.view(np.uint32)
    np.copyto(codes, subnormal, where=size < 2.0**info.minexp)
    codes |= (x.view(np.uint32) >> 24) & 0x80
    result: npt.NDArray[Any] = codes.astype(np.uint8).view(dtype)
    return result
