"""A checkpoint's description of one tensor."""

from __future__ import annotations

from pathlib import Path

from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor.

    Attributes:
        name: in Hugging Face's naming.
        dtype: the file's name for it: "F32", "BF16", "Q8_0" …
        shape: row-major, as in Hugging Face's files: [out, in] for a linear layer.
        nbytes: its size in the file, also for quantized tensors.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path
