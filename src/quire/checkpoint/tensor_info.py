"""A checkpoint's description of one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor.

    Attributes:
        name: in Hugging Face's naming.
        dtype: as the file calls it: "F32", "BF16", "Q8_0" …
        shape: row-major, as Hugging Face has it: [out, in] for a linear layer.
        nbytes: in the file, quantised tensors included.
        file: where it is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path
