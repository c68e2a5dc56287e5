"""Digests by which engines check that they have the same model, and the same KV blocks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from quire import __version__
from quire.checkpoint.source import resolve
from quire.checkpoint.weight_files import model_files, samples
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


KV_LAYOUT = "3"
"""How blocks are stored; higher when their bytes change, and when old files may be wrong."""


def kv_facts(config: EngineConfig, isa: str, ops: Mapping[str, str]) -> dict[str, str]:
    """Return all that the bytes of a KV block depend on, except for its key, by name.

    Args:
        isa: instruction set of the kernels.
        ops: the implementation of each op.

    Raises:
        QuireError: the model does not exist.
    """
    share, seed = config.share, config.seed if config.load_format == "dummy" else None
    grid = [config.tensor_parallel_size, config.stage_layers, share and [share.worker, share.rank]]
    hashes = [config.prefix_caching_hash_algo, config.prefix_caching_hash_seed]
    return {
        "version": __version__,
        "model": _digest([asdict(config.model), seed]),
        "weights": model_digest(config),
        "dtype": config.dtype,
        "quantization": _text([config.quantization, config.quantization_config]),
        "kv_cache_dtype": config.kv_cache_dtype,
        "layout": KV_LAYOUT,
        "calculate_kv_scales": str(config.calculate_kv_scales),
        "block_size": str(config.block_size),
        "prefix_caching_hash_algo": _text(hashes),
        "device": config.device,
        "instruction set": isa,
        "kernels": _digest([ops, config.num_threads if config.ops in ON_TORCH else None]),
        "share of the model": _text(grid),
    }


def kv_digest(facts: Mapping[str, str]) -> bytes:
    return hashlib.sha256(_text(facts).encode()).digest()[:16]


def _text(facts: object) -> str:
    return json.dumps(facts, sort_keys=True, default=str)


def _digest(facts: object) -> str:
    return hashlib.sha256(_text(facts).encode()).hexdigest()[:16]
