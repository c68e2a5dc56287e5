"""Rounding weights to GGUF's types (`checkpoint.gguf_blocks` says what their blocks hold).

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4 are rounded as ggml does it, to the bit. The scales of the
K types and of IQ4 are searched as ggml searches them, for the least squared error, weights of
larger magnitude counting more; since the trials differ, so may the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from quire.checkpoint.gguf_blocks import IQ4_VALUES, MXFP4_VALUES, QUANTIZED, quantized_arrays
from quire.checkpoint.gguf_types import TENSOR_TYPES
from quire.ops.quantized import QuantizedWeight
from quire.quant.gguf import NARROWER
from quire.quant.scale_search import fit_affine, fit_scale, inverse
from quire.system.hardware import detect

_TYPES = {type_.name: type_ for type_ in TENSOR_TYPES.values()}
_CHUNK = 1 << 17
"""Values rounded at once: the few arrays that a search needs stay in a core's cache."""


def fitting_type(name: str, columns: int) -> str:
    """The type in which rows of `columns` are stored where `name` is wanted.

    Rows that are no multiple of 256 go to a type with blocks of 32, at least as precise; those
    that are no multiple of 32 either to F16.
    """
    if columns % _TYPES[name].block_size and name in NARROWER:
        name = NARROWER[name]
    return "F16" if columns % _TYPES[name].block_size else name


def quantize(weight: Tensor, name: str) -> QuantizedWeight:
    """The weight, float [N, K], rounded to type `name` or the one that fits its rows.

    Raises:
        ValueError: a weight is not finite.
    """
    rows, columns = weight.shape
    if columns % _TYPES[name].block_size:
        name = NARROWER.get(name, name)
    # A last, partial block of 32 is filled with zeros: they change no scale.
    padded = torch.nn.functional.pad(weight, (0, -columns % _TYPES[name].block_size))
    raw = quantize_rows(padded, name).reshape(-1)
    arrays = quantized_arrays(raw, _TYPES[name], rows, padded.shape[1])
    return QuantizedWeight(
        torch.from_numpy(arrays.codes)[:, :columns].contiguous(),
        arrays.bits,
        torch.from_numpy(arrays.scale),
        arrays.group,
        None if arrays.zero is None else torch.from_numpy(arrays.zero),
        None if arrays.offset is None else torch.from_numpy(arrays.offset),
        None if arrays.codebook is None else torch.from_numpy(arrays.codebook),
    )


def quantize_rows(weight: Tensor, name: str) -> npt.NDArray[Any]:
    """The bytes of the weight, float [N, K], in type `name`: uint8 [N, bytes of a row].

    K is a multiple of the type's block size.

    Raises:
        ValueError: a weight is not finite.
    """
    type_ = _TYPES[name]
    blocks = weight.reshape(-1, type_.block_size)
    packed = torch.empty(len(blocks), type_.block_bytes, dtype=torch.uint8)
    count = max(1, _CHUNK // type_.block_size)
    inference = torch.is_inference_mode_enabled()  # which a thread does not inherit

    def pack(part: Tensor, target: Tensor) -> None:
        with torch.inference_mode(inference):
            x = part.to(torch.float32)
            if not bool(torch.isfinite(x).all()):
                raise ValueError(f"a weight is not finite and cannot be rounded to {name}")
            torch.cat(_ROUND[name](x), dim=1, out=target)

    with ThreadPoolExecutor(detect().cores) as threads:
        for _ in threads.map(pack, blocks.split(count), packed.split(count)):
            pass
    return packed.view(len(weight), -1).numpy()


Fields = list[Tensor]
"""uint8 [n, bytes] each: the fields of n blocks, in their order."""


def _half(x: Tensor) -> Tensor:
    return x.to(torch.float16).view(torch.uint8)


def _as_stored(x: Tensor) -> Tensor:
    """x once it has been float16."""
    return x.to(torch.float16).to(torch.float32)


def _gather(codes: Tensor, bits: int, run: int) -> Tensor:
    """Codes [n, m] of `bits` bits → [n, m · bits / 8]; `gguf_blocks._spread` undoes it."""
    parts = codes.to(torch.uint8).view(len(codes), -1, 8 // bits, run).unbind(2)
    packed = parts[0].clone()
    for i, part in enumerate(parts[1:], 1):
        packed |= part << (bits * i)
    return packed.reshape(len(codes), -1)


def _bit_plane(codes: Tensor) -> Tensor:
    """Bits [n, 32] → 4 bytes, the first bit lowest."""
    places = torch.arange(8, dtype=torch.uint8)
    return (codes.to(torch.uint8).view(len(codes), 4, 8) << places).sum(-1, dtype=torch.uint8)


def _symmetric(x: Tensor, bits: int) -> Fields:
    """Q4_0, Q5_0: the weight of largest magnitude is the lowest code, −2^(bits − 1)."""
    half = 1 << (bits - 1)
    extreme = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    d = extreme / -half
    codes = (x * inverse(d) + (half + 0.5)).trunc_().clamp_(0, 2 * half - 1).to(torch.uint8)
    return [_half(d), *_low_and_fifth(codes, bits)]


def _with_minimum(x: Tensor, bits: int) -> Fields:
    """Q4_1, Q5_1: the codes span the block."""
    top = (1 << bits) - 1
    low, high = x.aminmax(dim=-1, keepdim=True)
    d = (high - low) / top
    codes = ((x - low) * inverse(d) + 0.5).trunc_().clamp_(0, top).to(torch.uint8)
    return [_half(d), _half(low), *_low_and_fifth(codes, bits)]


def _low_and_fifth(codes: Tensor, bits: int) -> Fields:
    low = _gather(codes & 15, 4, 16)
    return [low] if bits == 4 else [_bit_plane(codes >> 4), low]


def _q8_0(x: Tensor) -> Fields:
    d = x.abs().amax(-1, keepdim=True) / 127
    scaled = x * inverse(d)
    size = scaled.abs()
    whole = size.floor()
    away_from_zero = whole + (2 * (size - whole)).floor()
    codes = (scaled.sign() * away_from_zero).clamp_(-127, 127).to(torch.int8)
    return [_half(d), codes.view(torch.uint8)]


def _mxfp4(x: Tensor) -> Fields:
    largest = x.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 3 + 127  # the top code is 6 = 1.5 · 2²
    exponent = torch.where(largest > 0, exponent, 0).clamp_(0, 254)
    levels = torch.tensor(MXFP4_VALUES[:8], dtype=torch.float32)
    half_scale = ((exponent - 1).clamp_(min=1) << 23).view(torch.float32)  # 2^(exponent − 128)
    codes = torch.bucketize(x.abs() / half_scale, (levels[1:] + levels[:-1]) / 2)
    codes += 8 * ((x < 0) & (codes > 0))
    return [exponent.to(torch.uint8), _gather(codes, 4, 16)]


def _q2_k(x: Tensor) -> Fields:
    x = x.view(-1, 16, 16)
    scale, minimum = fit_affine(x, x.abs(), 3, _steps(0.1, -5, 10))
    d, s = _share(scale, 15)
    m, t = _share(-minimum, 15)
    codes = _affine_codes(x, d, s, m, t, 3)
    return [(s | t << 4).flatten(1), _gather(codes, 2, 32), _half(d), _half(m)]


def _q3_k(x: Tensor) -> Fields:
    x = x.view(-1, 16, 16)
    scale = fit_scale(x, x * x, _rounded(-4, 3), -4, _steps(0.1, -8, 8))
    d, s = _signed_share(scale, 32)
    codes = ((x * inverse(d.unsqueeze(-1) * s)).round_().clamp_(-4, 3) + 4).to(torch.uint8)
    codes = codes.flatten(1)
    six = (s + 32).to(torch.uint8).flatten(1)
    scales = [_gather(six & 15, 4, 8), _gather(six >> 4, 2, 4)]
    return [_gather(codes >> 2, 1, 32), _gather(codes & 3, 2, 32), *scales, _half(d)]


def _q4_k(x: Tensor) -> Fields:
    d, m, scales, codes = _with_shared_minima(x, 15, _steps(0.1, -10, 10))
    return [d, m, scales, _gather(codes, 4, 32)]


def _q5_k(x: Tensor) -> Fields:
    d, m, scales, codes = _with_shared_minima(x, 31, _steps(0.1, -5, 10))
    return [d, m, scales, _gather(codes >> 4, 1, 32), _gather(codes & 15, 4, 32)]


def _with_shared_minima(x: Tensor, top: int, steps: list[float]) -> tuple[Tensor, ...]:
    """(d, m, the 12 bytes of scales and minima, codes [n, 256]) of Q4_K and Q5_K."""
    x = x.view(-1, 8, 32)
    importance = x.abs() + x.square().mean(-1, keepdim=True).sqrt()
    scale, minimum = fit_affine(x, importance, top, steps)
    d, s = _share(scale, 63)
    m, t = _share(-minimum, 63)
    codes = _affine_codes(x, d, s, m, t, top)
    s, t = s.flatten(1), t.flatten(1)
    first = slice(None), slice(0, 4)
    last = slice(None), slice(4, 8)
    packed = [
        s[first] | (s[last] >> 4) << 6,
        t[first] | (t[last] >> 4) << 6,
        (s[last] & 15) | (t[last] & 15) << 4,
    ]
    return _half(d), _half(m), torch.cat(packed, dim=1), codes


def _affine_codes(x: Tensor, d: Tensor, s: Tensor, m: Tensor, t: Tensor, top: int) -> Tensor:
    """uint8 [n, 256] of x ≈ d · s · q − m · t."""
    above = x + _as_stored(m).unsqueeze(-1) * t
    codes = above * inverse(_as_stored(d).unsqueeze(-1) * s)
    return codes.round_().clamp_(0, top).to(torch.uint8).flatten(1)


def _share(numbers: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """[n, groups, 1] ≥ 0 → d [n, 1] and uint8 s in 0 … top, so that they are about d · s."""
    d = numbers.amax(1) / top
    shares = numbers * inverse(_as_stored(d)).unsqueeze(-1)
    return d, shares.round_().clamp_(0, top).to(torch.uint8)


def _signed_share(numbers: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """[n, groups, 1] → d [n, 1], as stored, and whole s in −half … half − 1: about d · s."""
    low, high = numbers.aminmax(dim=1)
    d = _as_stored(torch.where(-low > high, low, high) / -half)
    return d, (numbers * inverse(d).unsqueeze(-1)).round_().clamp_(-half, half - 1)


def _q6_k(x: Tensor) -> Fields:
    x = x.view(-1, 16, 16)
    scale = fit_scale(x, x * x, _rounded(-32, 31), -32, _steps(0.1, -9, 9))
    d, s = _signed_share(scale, 128)
    codes = ((x * inverse(d.unsqueeze(-1) * s)).round_().clamp_(-32, 31) + 32).to(torch.uint8)
    codes = codes.flatten(1)
    scales = s.to(torch.int8).view(torch.uint8).flatten(1)
    return [_gather(codes & 15, 4, 64), _gather(codes >> 4, 2, 32), scales, _half(d)]


def _iq4_nl(x: Tensor) -> Fields:
    d = fit_scale(x, x * x, _nearest_iq4, IQ4_VALUES[0], _steps(1.0, -7, 7))
    codes = _iq4_codes(x * inverse(_as_stored(d)))
    return [_half(d), _gather(codes, 4, 16)]


def _iq4_xs(x: Tensor) -> Fields:
    x = x.view(-1, 8, 32)
    scale = fit_scale(x, x * x, _nearest_iq4, IQ4_VALUES[0], _steps(1.0, -7, 7))
    d, s = _signed_share(scale, 32)
    codes = _iq4_codes(x * inverse(d.unsqueeze(-1) * s)).flatten(1)
    six = (s + 32).to(torch.uint8).flatten(1)
    return [_half(d), _gather(six >> 4, 2, 1), _gather(six & 15, 4, 1), _gather(codes, 4, 16)]


_IQ4 = torch.tensor(IQ4_VALUES, dtype=torch.float32)
_IQ4_BOUNDS = _IQ4[1:] + _IQ4[:-1]
"""Twice what lies between two levels: whole numbers, so that x is above one if ⌈2x⌉ is."""
_LEAST, _MOST = int(_IQ4_BOUNDS[0]), int(_IQ4_BOUNDS[-1]) + 1
_IQ4_CODES = torch.bucketize(torch.arange(_LEAST, _MOST + 1, dtype=torch.float32), _IQ4_BOUNDS)
_IQ4_LEVELS = _IQ4[_IQ4_CODES]
"""Of each ⌈2x⌉ from _LEAST to _MOST: a look-up takes a fifth of a search."""


def _iq4_places(x: Tensor) -> Tensor:
    return (x + x).ceil_().clamp_(_LEAST, _MOST).sub_(_LEAST).to(torch.int32)


def _iq4_codes(x: Tensor) -> Tensor:
    return _IQ4_CODES[_iq4_places(x)]


def _nearest_iq4(x: Tensor) -> Tensor:
    return _IQ4_LEVELS[_iq4_places(x)]


def _rounded(low: int, high: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x.round_().clamp_(low, high)


def _steps(width: float, first: int, last: int) -> list[float]:
    return [width * i for i in range(first, last + 1)]


_ROUND: dict[str, Callable[[Tensor], Fields]] = {
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
assert _ROUND.keys() == QUANTIZED.keys()
