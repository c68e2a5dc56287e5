"""Heads of an int4 KV cache: rotated, then rounded to 32 levels (keys) or 16 (values).

A head's outliers would make the steps between levels large for all its elements. A Hadamard
transform mixes every element into all others, so what is stored looks normally distributed
(QuaRot, Ashkboos et al. 2024). It is orthonormal: rotated queries and keys have the same products,
and a weighted sum of rotated values is rotated back by the same transform.

```
keys    codes  4 bits: number of the size      signs  1 bit: negative      scale  8 bits
values  codes  4 bits: negative (bit 3), number of the size                scale  8 bits
```
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from quire.ops.metadata import KVCache

KEY_SIZES = (2, 6, 9, 13, 17, 22, 27, 32, 38, 44, 52, 61, 71, 84, 101, 127)
VALUE_SIZES = (6, 18, 30, 43, 58, 75, 96, 127)
"""The best levels for normally distributed numbers without their signs (Max 1960; Lloyd 1982), in
units of the scale."""
SCALE_ZERO = 840
"""Code 0 of a scale, as the upper 12 bits of a float32: 2⁻²²."""


class Heads(NamedTuple):
    """Heads as the cache stores them.

    Attributes:
        codes: uint8 [..., D / 2]; byte i has the codes of elements 2i (low half) and 2i + 1.
        scale: uint8 [...]; see `scale_of`.
        signs: uint8 [..., D / 8] of keys, None of values; bit b of byte i is set if element 8i + b
            is negative.
    """

    codes: Tensor
    scale: Tensor
    signs: Tensor | None = None

    def of(self, blocks: Tensor) -> Heads:
        signs = None if self.signs is None else self.signs[blocks]
        return Heads(self.codes[blocks], self.scale[blocks], signs)


def parts(cache: KVCache[Tensor]) -> tuple[Heads, Heads]:
    """Return the keys and values of an int4 cache: Heads [blocks, kv_heads, block_size, …]."""
    v, k_scale, v_scale = cache.v, cache.k_scale, cache.v_scale
    assert v is not None
    assert k_scale is not None
    assert v_scale is not None
    return Heads(cache.k, k_scale, cache.k_signs), Heads(v, v_scale)


def rotate(x: Tensor) -> Tensor:
    """Return heads [..., D] as float32, each multiplied by its Hadamard matrix; its own inverse.

    The matrix is as large as the largest power of two that divides D, and repeats along the head.
    """
    size = x.shape[-1] & -x.shape[-1]
    turned, step = x.float(), 1
    while step < size:
        a, b = turned.reshape(*x.shape[:-1], x.shape[-1] // (2 * step), 2, step).unbind(-2)
        turned = torch.stack((a + b, a - b), -2).reshape(x.shape)
        step *= 2
    return turned * math.sqrt(1 / size)


def scale_of(codes: Tensor) -> Tensor:
    """Return the scales of codes as float32: 5 bits of exponent, 3 of mantissa.

    0 is 0 and 255 is NaN.
    """
    bits = (codes.int() + SCALE_ZERO) << 20
    scale = bits.view(torch.float32).masked_fill(codes == 0, 0.0)
    return scale.masked_fill(codes == 255, torch.nan)


def nearest_scale(top: Tensor) -> Tensor:
    """Return the code of the scale nearest to top / 127; 255 if `top` is not finite.

    The largest elements may exceed the last level by a sixteenth, and are stored as it.
    """
    exact = top / top.new_full((), 127.0)
    code = (((exact.view(torch.int32) + 0x80000) >> 20) - SCALE_ZERO).clamp(0, 254)
    return torch.where(top.isfinite(), code, 255).to(torch.uint8)


def pack(x: Tensor, *, keys: bool) -> Heads:
    """Return heads [..., D] as keys or values of the cache; D is a multiple of 8.

    An element becomes the nearest level times the scale; halfway between two, the smaller one.
    """
    turned = rotate(x)
    code = nearest_scale(turned.abs().amax(-1))
    scale = scale_of(code)
    ratio = turned / torch.where(scale == 0, 1.0, scale).unsqueeze(-1)
    number = torch.zeros_like(ratio, dtype=torch.uint8)
    for low, high in pairwise(KEY_SIZES if keys else VALUE_SIZES):
        number += ratio.abs() > (low + high) / 2
    negative = (ratio < 0).to(torch.uint8)
    if keys:
        places = torch.arange(8, dtype=torch.uint8, device=x.device)
        signs = (negative.unflatten(-1, (-1, 8)) << places).sum(-1, dtype=torch.uint8)
    else:
        number |= negative << 3
    return Heads(number[..., 0::2] | number[..., 1::2] << 4, code, signs if keys else None)


def unpack(heads: Heads) -> Tensor:
    """Return heads as float32 [..., D], still rotated."""
    number = torch.stack((heads.codes & 15, heads.codes >> 4), -1).flatten(-2)
    sizes: tuple[int, ...]
    if heads.signs is None:
        negative, number, sizes = number >> 3, number & 7, VALUE_SIZES
    else:
        places = torch.arange(8, dtype=torch.uint8, device=number.device)
        negative, sizes = (heads.signs.unsqueeze(-1) >> places).flatten(-2) & 1, KEY_SIZES
    size = torch.full_like(number, sizes[0], dtype=torch.float32)
    for at, (low, high) in enumerate(pairwise(sizes), 1):
        size += (high - low) * (number >= at)
    return torch.where(negative == 1, -size, size) * scale_of(heads.scale).unsqueeze(-1)
