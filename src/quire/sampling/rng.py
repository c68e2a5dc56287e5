"""Random numbers without a stream: a hash of (seed, position), so that nothing is shared.

A generator with state would tie a request's tokens to how often it was asked before; a hash
gives the same number for the same token however the request was batched, chunked or resumed.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: the increment of SplitMix64."""


def uniform(seed: int, position: int) -> float:
    """A double in [0, 1) with 53 random bits, for output token number `position` of `seed`.

    Args:
        seed: any integer in [-2^63, 2^64).
        position: tokens the request has generated before this one.

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
    with the seed hashed first, so that neighbouring seeds are as unrelated as any others.
    """
    state = _mix((seed + _GOLDEN) & _MASK)
    bits = _mix((state + (position + 1) * _GOLDEN) & _MASK)
    return (bits >> 11) * 2.0**-53


def _mix(z: int) -> int:
    """SplitMix64's output function: a bijection of 64 bits that spreads every bit over all."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
