"""Draws tokens by Gumbel noise: the token with the largest (logit / temperature + noise).

It is a sample of the softmax. The noise is a hash of the draw's key and the token's id. So two
models that draw with the same key often draw the same token. The arithmetic is IEEE's basic
operations in a fixed order, as in csrc/cpu/gumbel.h, so a draw is the same on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Scaled = NDArray[np.float64]

_NEAR = 1e-9
"""More than the error of numpy's logarithms in a score, which differ between machines."""


def draw(scaled: Scaled, ids: Ids | None, key: int) -> int:
    """Return the index of the largest score, the first of equals.

    Args:
        scaled: float64 [n], (logit - peak) / temperature.
        ids: int64 [n], the tokens; None means 0 to n - 1.
        key: in [0, 2^64).
    """
    u = uniforms(np.arange(len(scaled)) if ids is None else ids, key)
    rough = scaled - np.log(-np.log1p(-u))
    near = np.flatnonzero(rough >= rough.max() - _NEAR)
    if len(near) > 1:
        near = near[[np.argmax(scaled[near] + gumbel(u[near]))]]
    return int(near[0])


def uniforms(ids: Ids, key: int) -> Scaled:
    """Return an odd multiple of 2^-53 in (0, 1) for each of `ids`."""
    first, second = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    tokens = ids.astype(np.uint32)
    high = _hash(tokens, first, second).astype(np.uint64)
    low = _hash(tokens, second, first).astype(np.uint64)
    odd = high << np.uint64(21) | low >> np.uint64(12) << np.uint64(1) | np.uint64(1)
    return odd.astype(np.float64) * 2.0**-53


def gumbel(u: Scaled) -> Scaled:
    """Return -log(-log(1 - u))."""
    return -_log(-_log(1.0 - u))


def _hash(h: NDArray[np.uint32], first: np.uint32, second: np.uint32) -> NDArray[np.uint32]:
    """Return the hash of each token id, modulo 2^32, with MurmurHash3's finalizer."""
    h = h ^ first
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B) + second
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)


def _log(x: Scaled) -> Scaled:
    """Return the natural logarithm, by the series of artanh."""
    m, exponent = np.frexp(x)  # m in [0.5, 1)
    small = m <= np.sqrt(0.5)
    m = np.where(small, 2.0 * m, m)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    p = np.zeros_like(s)
    for n in (17, 13, 9, 5, 1):  # in pairs, as the kernel
        p = p * (square * square) + (2.0 / n + 2.0 / (n + 2) * square)
    result: Scaled = (exponent - small) * np.log(2.0) + s * p
    return result
