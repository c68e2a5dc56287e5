"""GGUF's tensor types, their block sizes, and how blocks are cut into fields."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quire.core.dtypes import BFLOAT16
from quire.core.quantized import Floats
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A storage type: `block_size` values take `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    number: TensorType(name, block_size, block_bytes)
    for number, name, block_size, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}
"""Every type of the format, by number, so that any header can be measured."""
TYPES = {type_.name: type_ for type_ in TENSOR_TYPES.values()}

PLAIN: dict[str, npt.DTypeLike] = {"F32": "<f4", "F16": "<f2", "BF16": BFLOAT16}
"""Types whose blocks are single values, and numpy's dtypes of these; `gguf_blocks.QUANTIZED` has
the others that can be read."""

Bytes = npt.NDArray[np.uint8]


class Unpacked(NamedTuple):
    """n blocks: codes [n, block size], one byte each; scale and offset [n, groups]."""

    codes: npt.NDArray[Any]
    scale: Floats
    offset: Floats | None = None


def fields(blocks: Bytes, *widths: int) -> list[Bytes]:
    """Return `blocks` cut into fields; the last field takes the rest."""
    return np.hsplit(blocks, np.cumsum(widths))


def halves(field: Bytes) -> Floats:
    """Return two-byte numbers, [n, 2 · count] → [n, count]."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32)


def spread(field: Bytes, bits: int, run: int) -> Bytes:
    """Return codes of `bits` bits, [n, bytes] → [n, bytes · 8 / bits].

    The lowest bits of each run of `run` bytes are the run's first codes.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    codes = np.ascontiguousarray(field).reshape(-1, 1, run) >> shifts
    codes &= (1 << bits) - 1
    return codes.reshape(len(field), -1)
