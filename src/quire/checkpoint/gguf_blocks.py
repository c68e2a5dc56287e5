"""The contents of GGUF's quantized blocks: codes and their scales.

Little-endian; d and m are float16. By ggml's definition:

    Q4_0      [d][16 bytes: codes 0 … 15 low, 16 … 31 high]           d · (q − 8)
    Q4_1      [d][m][16 bytes: as Q4_0]                               d · q + m
    Q5_0      [d][32 bits: bit 4 of each code][16 bytes: the rest]    d · (q − 16)
    Q5_1      [d][m][32 bits][16 bytes]                               d · q + m
    Q8_0      [d][32 bytes: int8]                                     d · q
    IQ4_NL    [d][16 bytes: as Q4_0]                                  d · table[q]
    MXFP4     [1 byte: exponent e][16 bytes: as Q4_0]                 2^(e − 128) · table[q]

K types and IQ4_XS: 256 values in groups of 16 or 32, each with a scale (and minimum) of 4 to 8
bits, itself scaled by d (and m):

    Q2_K      [16 bytes: scale low, minimum high][64 bytes][d][m]     d · s · q − m · t
    Q3_K      [32 bytes: bit 2, inverted][64 bytes][12 bytes: s][d]   d · (s − 32) · (q − 4)
    Q4_K      [d][m][12 bytes: s, t][128 bytes]                       d · s · q − m · t
    Q5_K      [d][m][12 bytes: s, t][32 bytes: bit 4][128 bytes]      d · s · q − m · t
    Q6_K      [128 bytes: bits 0–3][64 bytes: 4–5][16 int8: s][d]     d · s · (q − 32)
    IQ4_XS    [d][2 bytes: s, bits 4–5][4 bytes: 0–3][128 bytes]      d · (s − 32) · table[q]

Ternary types, 256 values with one scale:

    TQ1_0     [48 bytes: 5 codes each][4 bytes: 4 codes each][d]      d · (q − 1)
    TQ2_0     [64 bytes][d]                                           d · (q − 1)

`gguf_lattices` has IQ1, IQ2 and IQ3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.checkpoint.gguf_forms import GGUF_FORMS
from quire.checkpoint.gguf_lattices import LATTICE_VALUES, LATTICES
from quire.checkpoint.gguf_types import Bytes, TensorType, Unpacked, fields, halves, spread
from quire.core.quantized import Floats, QuantizedWeight

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of e2m1, as in ggml; the scale is half as large."""
_CODEBOOKS = {"iq4_nl": IQ4_VALUES, "e2m1x2": MXFP4_VALUES, **LATTICE_VALUES}
_TERNARY = ("TQ1_0", "TQ2_0")


def quantized_arrays(raw: Bytes, type_: TensorType, rows: int, columns: int) -> QuantizedWeight:
    """Return the weight [rows, columns] from the bytes `raw`, in a type of `QUANTIZED`.

    `columns` is a multiple of the type's block size. Nothing is rounded:
    `QuantizedWeight.dequantize` returns exactly ggml's values.
    """
    form = GGUF_FORMS[type_.name]
    with np.errstate(all="ignore"):  # a damaged scale may have any value
        codes, scale, offset = QUANTIZED[type_.name](raw.reshape(-1, type_.block_bytes))
    groups = columns // form.group
    middle = 1 if type_.name in _TERNARY else 1 << (form.bits - 1)
    return QuantizedWeight(
        codes.reshape(rows, columns),
        form.bits,
        scale.reshape(rows, groups),
        form.group,
        np.full((rows, groups), middle, np.float32) if form.second == "middle" else None,
        None if offset is None else offset.reshape(rows, groups),
        np.array(_CODEBOOKS[form.codebook], np.float32) if form.codebook else None,
    )


def _q4_0(blocks: Bytes) -> Unpacked:
    d, codes = fields(blocks, 2)
    return Unpacked(spread(codes, 4, 16), halves(d))


def _q4_1(blocks: Bytes) -> Unpacked:
    d, m, codes = fields(blocks, 2, 2)
    return Unpacked(spread(codes, 4, 16), halves(d), halves(m))


def _q5_0(blocks: Bytes) -> Unpacked:
    d, high, low = fields(blocks, 2, 4)
    return Unpacked(_fifth_bit(low, high), halves(d))


def _q5_1(blocks: Bytes) -> Unpacked:
    d, m, high, low = fields(blocks, 2, 2, 4)
    return Unpacked(_fifth_bit(low, high), halves(d), halves(m))


def _fifth_bit(low: Bytes, high: Bytes) -> Bytes:
    codes = spread(low, 4, 16)
    codes |= np.unpackbits(high, axis=1, bitorder="little") << 4
    return codes


def _q8_0(blocks: Bytes) -> Unpacked:
    d, codes = fields(blocks, 2)
    return Unpacked(np.ascontiguousarray(codes).view(np.int8), halves(d))


def _mxfp4(blocks: Bytes) -> Unpacked:
    exponent, codes = fields(blocks, 1)
    # ldexp rounds nothing: 2^-128 and 2^-127 are subnormal, but powers of two.
    scale = np.ldexp(np.float32(1.0), exponent.astype(np.int32) - 128)
    return Unpacked(spread(codes, 4, 16), scale)


def _q2_k(blocks: Bytes) -> Unpacked:
    scales, codes, d, m = fields(blocks, 16, 64, 2)
    return Unpacked(
        spread(codes, 2, 32),
        halves(d) * (scales & 15).astype(np.float32),
        -(halves(m) * (scales >> 4).astype(np.float32)),
    )


def _q3_k(blocks: Bytes) -> Unpacked:
    high, low, scales, d = fields(blocks, 32, 64, 12)
    codes = spread(low, 2, 32)
    codes |= spread(high, 1, 32) << 2
    six = spread(scales[:, :8], 4, 8) | spread(scales[:, 8:], 2, 4) << 4
    return Unpacked(codes, halves(d) * (six.astype(np.float32) - 32))


def _q4_k(blocks: Bytes) -> Unpacked:
    d, m, scales, codes = fields(blocks, 2, 2, 12)
    return Unpacked(spread(codes, 4, 32), *_scales_and_minima(d, m, scales))


def _q5_k(blocks: Bytes) -> Unpacked:
    d, m, scales, high, low = fields(blocks, 2, 2, 12, 32)
    codes = spread(low, 4, 32)
    codes |= spread(high, 1, 32) << 4
    return Unpacked(codes, *_scales_and_minima(d, m, scales))


def _scales_and_minima(d: Bytes, m: Bytes, packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack eight scales and eight minima of 6 bits.

    The first four of each are in the low bits of 4 bytes; the others have 4 bits in the last 4
    bytes and 2 bits at the top of the first bytes.
    """
    first_scales, first_minima, last = fields(packed, 4, 4)
    scales = np.hstack([first_scales & 63, (last & 15) | (first_scales >> 2 & 48)])
    minima = np.hstack([first_minima & 63, (last >> 4) | (first_minima >> 2 & 48)])
    return halves(d) * scales.astype(np.float32), -(halves(m) * minima.astype(np.float32))


def _q6_k(blocks: Bytes) -> Unpacked:
    low, high, scales, d = fields(blocks, 128, 64, 16)
    codes = spread(low, 4, 64)
    codes |= spread(high, 2, 32) << 4
    return Unpacked(
        codes, halves(d) * np.ascontiguousarray(scales).view(np.int8).astype(np.float32)
    )


def _iq4_xs(blocks: Bytes) -> Unpacked:
    d, high, low, codes = fields(blocks, 2, 2, 4)
    top = spread(high, 2, 1)
    six = spread(low, 4, 1) | top << 4
    return Unpacked(spread(codes, 4, 16), halves(d) * (six.astype(np.float32) - 32))


def _tq1_0(blocks: Bytes) -> Unpacked:
    first, second, last, d = fields(blocks, 32, 16, 4)
    codes = np.hstack([_digits(first, 5), _digits(second, 5), _digits(last, 4)])
    return Unpacked(codes, halves(d).repeat(2, axis=1))


def _digits(field: Bytes, count: int) -> Bytes:
    """Return codes in base 3: the first ones of all bytes, then the second ones …

    A byte is their fraction of 3^5, in 256ths and rounded up.
    """
    shifted = field[:, None, :] * (3 ** np.arange(count, dtype=np.uint8)).reshape(-1, 1)
    return (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(field), -1)


def _tq2_0(blocks: Bytes) -> Unpacked:
    codes, d = fields(blocks, 64)
    return Unpacked(spread(codes, 2, 32), halves(d).repeat(2, axis=1))


QUANTIZED: dict[str, Callable[[Bytes], Unpacked]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    **LATTICES,
}
"""The quantized types that can be read → what unpacks their blocks, uint8 [n, block bytes]."""
