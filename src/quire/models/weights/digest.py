"""A digest by which machines check that they have the same model."""

from __future__ import annotations

import hashlib

from quire.checkpoint.samples import model_files, samples
from quire.checkpoint.source import resolve
from quire.core.config import EngineConfig


def model_digest(config: EngineConfig) -> str:
    """Return a digest of the weight files: their names, sizes and samples of their content; "" for
    random weights, which depend on the configuration only.

    Raises:
        QuireError: the model does not exist.
    """
    if config.load_format == "dummy":
        return ""
    path = resolve(config.model_path, load_format=config.load_format).path
    assert path is not None
    digest = hashlib.sha256()
    for file in model_files(path):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        for sample in samples(file):
            digest.update(sample)
    return digest.hexdigest()
