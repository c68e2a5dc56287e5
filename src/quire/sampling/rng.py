"""Random numbers without state: a hash of (seed, position).

With a stateful generator, tokens would depend on the number of earlier draws. A hash gives the same
number for the same token, independent of batching, chunks and preemptions.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: the increment of SplitMix64."""


def draw_key(seed: int, position: int) -> int:
    """Return 64 random bits for the draw of output token number `position`.

    This is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014) with a hashed seed, so that neighbouring seeds are unrelated.

    Args:
        seed: an integer in [-2^63, 2^64).
        position: the number of tokens generated before this one.
    """
    state = _mix((seed + _GOLDEN) & _MASK)
    return _mix((state + (position + 1) * _GOLDEN) & _MASK)


def uniform(seed: int, position: int) -> float:
    """Return a double in [0, 1) with 53 random bits."""
    return (draw_key(seed, position) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    """Return SplitMix64's output function: a bijection of 64 bits that mixes all bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
