"""Heads of a 4-bit KV cache: rotated, then rounded to 16 levels.

A head's outliers would make the steps between levels large for all its elements. A Hadamard
transform mixes every element into all others, so what is stored looks normally distributed
(QuaRot, Ashkboos et al. 2024). It is orthonormal: rotated queries and keys have the same products,
and a weighted sum of rotated values is rotated back by the same transform.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

_HALF = (6, 18, 30, 43, 58, 75, 96, 127)
LEVELS = (*(-level for level in reversed(_HALF)), *_HALF)
"""The best 16 levels for normally distributed numbers (Max 1960; Lloyd 1982), in units of the
scale."""


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


def pack(x: Tensor, scale: Tensor) -> Tensor:
    """Return heads [..., D] as codes, two per byte: uint8 [..., D / 2].

    A code is the number of the nearest level of x / scale; halfway between two, the lower one.

    Args:
        x: float32.
        scale: bfloat16 [...].
    """
    divided = x / torch.where(scale == 0, 1.0, scale.float()).unsqueeze(-1)
    codes = torch.zeros_like(divided, dtype=torch.uint8)
    for low, high in pairwise(LEVELS):
        codes += divided > (low + high) / 2
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(codes: Tensor) -> Tensor:
    """Return the levels of codes [..., D / 2]: float32 [..., D]."""
    halves = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    levels = torch.full_like(halves, LEVELS[0], dtype=torch.float32)
    for code, (low, high) in enumerate(pairwise(LEVELS), 1):
        levels += (high - low) * (halves >= code)
    return levels
