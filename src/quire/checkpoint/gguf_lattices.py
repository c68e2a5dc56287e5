"""GGUF's IQ1, IQ2 and IQ3: blocks whose values are points of a lattice.

A block has 256 values; d is float16. A number names a point, which is the sizes of 8 values (of 4
in IQ3) as indices of a table. Each value has a sign; of eight signs in 7 bits, the last one is
their parity. IQ1's points have signs of their own, and a sign shifts all values of a point. A code
is an index, plus 8 if its sign is set. Groups of 32, or of 16 in IQ2_XS, IQ2_S and IQ1_M:

    IQ2_XXS   [d][8 × (4 bytes: points; 32 bits: 4 × 7 signs, s)]     d · (2s + 1) / 8 · table[q]
    IQ2_XS    [d][32 × 16 bits: point, 7 signs][8 bytes: s]           d · (2s + 1) / 8 · table[q]
    IQ2_S     [d][32 bytes: points][32 bytes: signs][8 bytes: points, bits 8–9][8 bytes: s]  as XS
    IQ3_XXS   [d][64 bytes: points][8 × 32 bits: 4 × 7 signs, s]      d · (2s + 1) / 4 · table[q]
    IQ3_S     [d][64 bytes: points][8 bytes: bit 8][32 bytes: signs][4 bytes: s]  d · (2s + 1) · …
    IQ1_S     [d][32 bytes: points][8 × 16 bits: 4 × bits 8–10, s, shift]  d · (2s + 1) / 8 · …
    IQ1_M     [32 bytes: points][16 bytes: 2 × (bits 8–10, shift)][4 × 16 bits: 4 × s, 4 bits of d]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_types import Bytes, Unpacked, fields, halves, spread
from quire.core.quantized import Floats

_POINTS = Path(__file__).with_name("gguf_lattices.npz")
"""Lattice → its points, in ggml's order: a bit for each number whose digits are the indices of a
point, the first index lowest."""
_NONE = (0,) * 5
"""Codes that no block has."""
LATTICE_VALUES = {
    "iq1": (-7, 1, 9, *_NONE, -9, -1, 7, *_NONE),
    "iq2": (8, 25, 43, *_NONE, -8, -25, -43, *_NONE),
    "iq3": (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62),
    "iq3_s": (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15),
}
"""Codebook → the values of its codes. IQ1's are eight times −1, 0 and 1, plus or minus 1."""


def _iq2_xxs(blocks: Bytes) -> Unpacked:
    d, rest = fields(blocks, 2)
    pairs = rest.reshape(-1, 8, 8)
    signs, s = _four_signs(pairs[..., 4:])
    return Unpacked(_signed("IQ2_XXS", pairs[..., :4], signs), _odd(d, s, 8))


def _iq2_xs(blocks: Bytes) -> Unpacked:
    d, words, s = fields(blocks, 2, 64)
    words = np.ascontiguousarray(words).view("<u2")
    codes = _signed("IQ2_XS", words & 511, _with_parity(words >> 9))
    return Unpacked(codes, _odd(d, spread(s, 4, 1), 8))


def _iq2_s(blocks: Bytes) -> Unpacked:
    d, low, signs, high, s = fields(blocks, 2, 32, 32, 8)
    points = low | spread(high, 2, 1).astype(np.uint16) << 8
    return Unpacked(_signed("IQ2_S", points, signs), _odd(d, spread(s, 4, 1), 8))


def _iq3_xxs(blocks: Bytes) -> Unpacked:
    d, points, rest = fields(blocks, 2, 64)
    signs, s = _four_signs(rest.reshape(-1, 8, 4))
    return Unpacked(_signed("IQ3_XXS", points, signs), _odd(d, s, 4))


def _iq3_s(blocks: Bytes) -> Unpacked:
    d, low, high, signs, s = fields(blocks, 2, 64, 8, 32)
    points = low | spread(high, 1, 1).astype(np.uint16) << 8
    return Unpacked(_signed("IQ3_S", points, signs), _odd(d, spread(s, 4, 1)))


def _iq1_s(blocks: Bytes) -> Unpacked:
    d, low, high = fields(blocks, 2, 32)
    words = np.ascontiguousarray(high).view("<u2")
    points = low | (words[..., None] >> (0, 3, 6, 9) & 7).reshape(low.shape) << 8
    shift = (words >> 15).repeat(4, axis=1)
    return Unpacked(_shifted(points, shift), _odd(d, words >> 12 & 7, 8))


def _iq1_m(blocks: Bytes) -> Unpacked:
    low, high, rest = fields(blocks, 32, 16)
    words = np.ascontiguousarray(rest).view("<u2")
    d = (words >> 12 << (0, 4, 8, 12)).sum(1, keepdims=True, dtype=np.uint16).view(np.uint8)
    top = spread(high, 4, 1).astype(np.uint16)
    s = (words[..., None] >> (0, 3, 6, 9) & 7).reshape(len(words), 16)
    return Unpacked(_shifted(low | (top & 7) << 8, top >> 3), _odd(d, s, 8))


def _odd(d: Bytes, s: npt.NDArray[Any], over: int = 1) -> Floats:
    """Return d · (2 s + 1) / over; all are exact."""
    odd: Floats = (2 * s + 1).astype(np.float32)
    return halves(d) * (odd * np.float32(1 / over))


def _four_signs(field: Bytes) -> tuple[Bytes, npt.NDArray[Any]]:
    """Return bytes of 8 signs [n, 4 · words], and the scales [n, words], of [n, words, 4]."""
    words = np.ascontiguousarray(field).view("<u4")
    return _with_parity(words >> (0, 7, 14, 21) & 127), words[..., 0] >> 28


def _with_parity(seven: npt.NDArray[Any]) -> Bytes:
    """Return bytes [n, …] → [n, all] of seven signs and their parity."""
    signs: Bytes = seven.astype(np.uint8).reshape(len(seven), -1)
    folded = signs ^ signs >> 4
    folded ^= folded >> 2
    signs |= (folded ^ folded >> 1) << 7
    return signs


def _signed(name: str, points: npt.NDArray[Any], signs: Bytes) -> Bytes:
    codes: Bytes = _lattice(name)[points].reshape(len(points), -1)
    codes |= np.unpackbits(signs, axis=1, bitorder="little") << 3
    return codes


def _shifted(points: npt.NDArray[Any], shift: npt.NDArray[Any]) -> Bytes:
    codes: Bytes = _lattice("IQ1")[points]
    codes |= (shift.astype(np.uint8) << 3)[..., None]
    return codes.reshape(len(points), -1)


@cache
def _lattice(name: str) -> Bytes:
    """Return a lattice's points in ggml's order: indices of the table [points, width]."""
    with np.load(_POINTS) as packed:
        present = np.unpackbits(packed[name], bitorder="little").nonzero()[0]
    levels, width = (8, 4) if name.startswith("IQ3") else (3, 8)
    return (present[:, None] // levels ** np.arange(width) % levels).astype(np.uint8)


LATTICES: dict[str, Callable[[Bytes], Unpacked]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
"""Type → what unpacks its blocks."""
