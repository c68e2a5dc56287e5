"""Digests by which engines check that they have the same model, and the same KV blocks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from quire import __version__
from quire.checkpoint.samples import model_files, samples
from quire.checkpoint.source import resolve
from quire.core.config import ON_TORCH, EngineConfig


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


def kv_digest(config: EngineConfig, isa: str, ops: Mapping[str, str]) -> bytes:
    """Return a digest of all that the bytes of a KV block depend on, except for its key.

    Args:
        isa: instruction set of the kernels.
        ops: the implementation of each op.

    Raises:
        QuireError: the model does not exist.
    """
    share, seed = config.share, config.seed if config.load_format == "dummy" else None
    facts = [
        __version__,
        model_digest(config),
        asdict(config.model),
        [seed, config.dtype, config.quantization, config.quantization_config],
        [config.kv_cache_dtype, config.calculate_kv_scales, config.block_size],
        [config.prefix_caching_hash_algo, config.prefix_caching_hash_seed],
        [config.device, isa, dict(ops), config.num_threads if config.ops in ON_TORCH else None],
        [config.tensor_parallel_size, config.stage_layers, share and [share.worker, share.rank]],
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()[:16]
