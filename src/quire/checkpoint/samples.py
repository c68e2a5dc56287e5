"""Identify a model's files without reading them completely."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from quire.checkpoint.weight_files import split_files, weight_files

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def model_files(path: Path) -> list[Path]:
    """Return the weight files of a model's folder, or of its first or only GGUF file.

    Raises:
        QuireError: some are missing.
    """
    return split_files(path) if path.is_file() else weight_files(path)


def samples(file: Path) -> Iterator[bytes]:
    """Yield evenly spaced pieces of a file; all of a small one."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        for sample in range(_SAMPLES):
            yield os.pread(stream.fileno(), _SAMPLE_BYTES, size * sample // _SAMPLES)
