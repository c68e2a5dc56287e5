"""Round weights to GGUF's types (`checkpoint.gguf_blocks` documents their blocks).

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4 have the bits that ggml gives. For the K types and IQ4, the
scales are searched as in ggml, for the least squared error; larger weights count more. The trials
differ from ggml's, so the bits may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_blocks import IQ4_VALUES, MXFP4_VALUES, QUANTIZED, quantized_arrays
from quire.checkpoint.gguf_forms import NARROWER
from quire.checkpoint.gguf_types import TYPES
from quire.core.dtypes import Floats, HostArray
from quire.core.quantized import QuantizedWeight
from quire.quant.chunks import for_chunks
from quire.quant.codebooks import buckets
from quire.quant.scale_search import fit_affine, fit_scale, inverse, largest

Bytes = HostArray
"""uint8."""

_CHUNK = 1 << 17
"""Values rounded at once: the few arrays that a search needs stay in a core's cache."""


def fitting_type(name: str, columns: int) -> str:
    """Return the type in which rows of `columns` are stored if `name` is wanted.

    Rows that are no multiple of 256 go to a type with blocks of 32, at least as precise; those
    that are no multiple of 32 either go to F16.
    """
    if columns % TYPES[name].block_size and name in NARROWER:
        name = NARROWER[name]
    return "F16" if columns % TYPES[name].block_size else name


def quantize(weight: HostArray, name: str) -> QuantizedWeight:
    """Round the weight, float [N, K], to type `name` or the one that fits its rows.

    Raises:
        ValueError: a weight is not finite.
    """
    rows, columns = weight.shape
    if columns % TYPES[name].block_size:
        name = NARROWER.get(name, name)
    if missing := -columns % TYPES[name].block_size:
        # Zeros fill the last block of 32: they change no scale.
        weight = np.concatenate([weight, np.zeros((rows, missing), weight.dtype)], axis=1)
    raw = quantize_rows(weight, name).reshape(-1)
    arrays = quantized_arrays(raw, TYPES[name], rows, weight.shape[1])
    codes = np.ascontiguousarray(arrays.codes[:, :columns])
    numbers = arrays.scale, arrays.group, arrays.zero, arrays.offset, arrays.codebook
    return QuantizedWeight(codes, arrays.bits, *numbers)


def quantize_rows(weight: HostArray, name: str) -> Bytes:
    """Return the bytes of the weight, float [N, K], in type `name`: uint8 [N, bytes of a row].

    K is a multiple of the type's block size.

    Raises:
        ValueError: a weight is not finite.
    """
    type_ = TYPES[name]
    blocks = weight.reshape(-1, type_.block_size)
    packed = np.empty((len(blocks), type_.block_bytes), np.uint8)

    def pack(part: slice) -> None:
        x = blocks[part].astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise ValueError(f"a weight is not finite and cannot be rounded to {name}")
        # A scale may overflow float16, and its reciprocal float32.
        with np.errstate(all="ignore"):
            packed[part] = np.concatenate(_ROUND[name](np.ascontiguousarray(x.T))).T

    for_chunks(len(blocks), _CHUNK // type_.block_size, pack)
    return packed.reshape(len(weight), -1)


Fields = list[Bytes]
"""uint8 [bytes, n] each: the fields of n blocks, in their order.

Values are float32 [block size, n] throughout, and a block's numbers [..., n].
"""


def _half(x: Floats) -> Bytes:
    """Return the float16 bytes [2, n] of x [1, n]."""
    return x.astype(np.float16).reshape(-1, 1).view(np.uint8).T


def _as_stored(x: Floats) -> Floats:
    """Round to float16 and back."""
    return x.astype(np.float16).astype(np.float32)


def _gather(codes: Bytes, bits: int, run: int) -> Bytes:
    """Return codes [m, n] of `bits` bits packed: [m · bits / 8, n]. See `gguf_types.spread`."""
    parts = codes.reshape(-1, 8 // bits, run, codes.shape[1])
    packed = parts[:, 0].copy()
    for i in range(1, 8 // bits):
        packed |= parts[:, i] << (bits * i)
    return packed.reshape(-1, codes.shape[1])


def _symmetric(x: Floats, bits: int) -> Fields:
    """Round to Q4_0 or Q5_0: the weight of largest magnitude is the lowest code, −2^(bits − 1)."""
    half = 1 << (bits - 1)
    extreme = np.take_along_axis(x, np.abs(x).argmax(0, keepdims=True), 0)
    d = extreme / -half
    codes = np.clip(np.trunc(x * inverse(d) + (half + 0.5)), 0, 2 * half - 1).astype(np.uint8)
    return [_half(d), *_low_and_fifth(codes, bits)]


def _with_minimum(x: Floats, bits: int) -> Fields:
    """Round to Q4_1 or Q5_1: the codes span the block."""
    top = (1 << bits) - 1
    low = x.min(0, keepdims=True)
    d = (x.max(0, keepdims=True) - low) / top
    codes = np.clip(np.trunc((x - low) * inverse(d) + 0.5), 0, top).astype(np.uint8)
    return [_half(d), _half(low), *_low_and_fifth(codes, bits)]


def _low_and_fifth(codes: Bytes, bits: int) -> Fields:
    low = _gather(codes & 15, 4, 16)
    return [low] if bits == 4 else [_gather(codes >> 4, 1, 1), low]


def _q8_0(x: Floats) -> Fields:
    size = np.abs(x)
    d = size.max(0, keepdims=True) / 127
    size *= inverse(d)
    whole = np.floor(size)
    away_from_zero = whole + np.floor(2 * (size - whole))
    codes = np.copysign(np.minimum(away_from_zero, 127), x).astype(np.int8)
    return [_half(d), codes.view(np.uint8)]


def _mxfp4(x: Floats) -> Fields:
    size = np.abs(x)
    top = size.max(0, keepdims=True)
    exponent = np.frexp(top)[1] - 3 + 127  # the top code is 6 = 1.5 · 2²
    exponent = np.clip(np.where(top > 0, exponent, 0), 0, 254)
    half_scale = (np.maximum(exponent - 1, 1) << 23).view(np.float32)  # 2^(exponent − 128)
    levels = np.array(MXFP4_VALUES[:8], np.float32)
    codes = buckets(size / half_scale, (levels[1:] + levels[:-1]) / 2)
    codes += ((x < 0) & (codes > 0)).view(np.uint8) << 3
    return [exponent.astype(np.uint8), _gather(codes, 4, 16)]


def _q2_k(x: Floats) -> Fields:
    x = _in_groups(x, 16)
    scale, minimum = fit_affine(x, np.abs(x), 3, _steps(0.1, -5, 10))
    d, s = _share(scale, 15)
    m, t = _share(-minimum, 15)
    codes = _affine_codes(x, d, s, m, t, 3)
    return [_flat(s | t << 4), _gather(codes, 2, 32), _half(d), _half(m)]


def _q3_k(x: Floats) -> Fields:
    x = _in_groups(x, 16)
    scale = fit_scale(x, x * x, _rounded(-4, 3), -4, _steps(0.1, -8, 8))
    d, s = _signed_share(scale, 32)
    codes = _flat(_rounded(-4, 3)(x * inverse(d * s)) + 4).astype(np.uint8)
    six = _flat(s + 32).astype(np.uint8)
    scales = [_gather(six & 15, 4, 8), _gather(six >> 4, 2, 4)]
    return [_gather(codes >> 2, 1, 32), _gather(codes & 3, 2, 32), *scales, _half(d)]


def _q4_k(x: Floats) -> Fields:
    *scales, codes = _with_shared_minima(x, 15, _steps(0.1, -10, 10))
    return [*scales, _gather(codes, 4, 32)]


def _q5_k(x: Floats) -> Fields:
    *scales, codes = _with_shared_minima(x, 31, _steps(0.1, -5, 10))
    return [*scales, _gather(codes >> 4, 1, 32), _gather(codes & 15, 4, 32)]


def _with_shared_minima(x: Floats, top: int, steps: list[float]) -> Fields:
    """Return the common fields of Q4_K and Q5_K: d, m, 12 bytes of scales and minima, codes."""
    x = _in_groups(x, 32)
    importance = np.abs(x)
    importance += np.sqrt(np.square(x).mean(-2, keepdims=True))
    scale, minimum = fit_affine(x, importance, top, steps)
    d, s = _share(scale, 63)
    m, t = _share(-minimum, 63)
    codes = _affine_codes(x, d, s, m, t, top)
    s, t = _flat(s), _flat(t)
    packed = [
        s[:4] | (s[4:] >> 4) << 6,
        t[:4] | (t[4:] >> 4) << 6,
        (s[4:] & 15) | (t[4:] & 15) << 4,
    ]
    return [_half(d), _half(m), *packed, codes]


def _in_groups(x: Floats, group: int) -> Floats:
    """Split [256, n] into groups: [groups, group, n]."""
    return x.reshape(-1, group, x.shape[1])


def _flat(x: HostArray) -> HostArray:
    """Join groups, [groups, group, n], to [groups · group, n]."""
    return x.reshape(-1, x.shape[2])


def _affine_codes(x: Floats, d: Floats, s: Bytes, m: Floats, t: Bytes, top: int) -> Bytes:
    """Return the codes q of x ≈ d · s · q − m · t, uint8 [256, n]."""
    codes = x + _as_stored(m) * t
    codes *= inverse(_as_stored(d) * s)
    return _flat(_rounded(0, top)(codes)).astype(np.uint8)


def _share(numbers: Floats, top: int) -> tuple[Floats, Bytes]:
    """Write scales ≥ 0, [groups, 1, n], as about d · s: d [1, n], and uint8 s in 0 … top."""
    d = numbers.max(0) / top
    return d, _rounded(0, top)(numbers * inverse(_as_stored(d))).astype(np.uint8)


def _signed_share(numbers: Floats, half: int) -> tuple[Floats, Floats]:
    """Write scales, [groups, 1, n], as about d · s: d [1, n], as stored; s in −half … half − 1."""
    d = _as_stored(largest(numbers, 0)[0] / -half)
    return d, _rounded(-half, half - 1)(numbers * inverse(d))


def _q6_k(x: Floats) -> Fields:
    x = _in_groups(x, 16)
    scale = fit_scale(x, x * x, _rounded(-32, 31), -32, _steps(0.1, -9, 9))
    d, s = _signed_share(scale, 128)
    codes = _flat(_rounded(-32, 31)(x * inverse(d * s)) + 32).astype(np.uint8)
    scales = _flat(s).astype(np.int8).view(np.uint8)
    return [_gather(codes & 15, 4, 64), _gather(codes >> 4, 2, 32), scales, _half(d)]


def _iq4_nl(x: Floats) -> Fields:
    d = fit_scale(x, x * x, _nearest_iq4, IQ4_VALUES[0], _steps(1.0, -7, 7))
    codes = _iq4_codes(x * inverse(_as_stored(d)))
    return [_half(d), _gather(codes, 4, 16)]


def _iq4_xs(x: Floats) -> Fields:
    x = _in_groups(x, 32)
    scale = fit_scale(x, x * x, _nearest_iq4, IQ4_VALUES[0], _steps(1.0, -7, 7))
    d, s = _signed_share(scale, 32)
    codes = _flat(_iq4_codes(x * inverse(d * s)))
    six = _flat(s + 32).astype(np.uint8)
    return [_half(d), _gather(six >> 4, 2, 1), _gather(six & 15, 4, 1), _gather(codes, 4, 16)]


_IQ4 = np.array(IQ4_VALUES, np.float32)
_IQ4_BOUNDS = _IQ4[1:] + _IQ4[:-1]
"""Twice the middle between two levels: whole numbers, so x is above one if ⌈2x⌉ is."""
_LEAST, _MOST = int(_IQ4_BOUNDS[0]), int(_IQ4_BOUNDS[-1]) + 1
_IQ4_CODES = np.searchsorted(_IQ4_BOUNDS, np.arange(_LEAST, _MOST + 1)).astype(np.uint8)
_IQ4_LEVELS = _IQ4[_IQ4_CODES]
"""Of each ⌈2x⌉ from _LEAST to _MOST: a look-up is faster than a search."""


def _iq4_places(x: Floats) -> npt.NDArray[np.intp]:
    x += x
    return (np.clip(np.ceil(x, out=x), _LEAST, _MOST, out=x) - _LEAST).astype(np.intp)


def _iq4_codes(x: Floats) -> Bytes:
    return _IQ4_CODES[_iq4_places(x)]


def _nearest_iq4(x: Floats) -> Floats:
    return np.take(_IQ4_LEVELS, _iq4_places(x), out=x, mode="clip")


def _rounded(low: int, high: int) -> Callable[[Floats], Floats]:
    """Return a function that rounds its argument in place to whole numbers in low … high."""
    return lambda x: np.clip(np.rint(x, out=x), low, high, out=x)


def _steps(width: float, first: int, last: int) -> list[float]:
    return [width * i for i in range(first, last + 1)]


_ROUND: dict[str, Callable[[Floats], Fields]] = {
    "Q4_0": partial(_symmetric, bits=4),
    "Q4_1": partial(_with_minimum, bits=4),
    "Q5_0": partial(_symmetric, bits=5),
    "Q5_1": partial(_with_minimum, bits=5),
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
assert _ROUND.keys() < QUANTIZED.keys()
