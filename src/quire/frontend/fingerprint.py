"""`system_fingerprint`: equal where the same request gets the same answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire import __version__
from quire.checkpoint.weight_files import model_files, samples
from quire.core.config import ON_TORCH
from quire.resolve.engine import Resolved

_DIGITS = 12
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json", "merges.txt", "vocab.txt", "tekken.json", "tiktoken.model",
)  # fmt: skip


def fingerprint(
    resolved: Resolved, facts: Mapping[str, Any], defaults: Mapping[str, Any], *texts: str | None
) -> str:
    """Return a digest of the model and of every setting that can change an answer.

    docs/same-answer.md lists these settings. The files' location does not count. Neither do the
    limits that follow from the memory, because they only end an answer earlier.

    Args:
        facts: hardware and backend of the core (see `messages.Ready`).
        defaults: values of unset sampling fields.
        texts: the server's additions, such as its own chat template.
    """
    config = resolved.config
    settings = [
        __version__,
        asdict(config.model),
        config.dtype,
        config.quantization,
        config.quantization_config,
        config.kv_cache_dtype,
        config.calculate_kv_scales,
        config.logprobs_mode,
        config.tensor_parallel_size,
        None if config.pooling is None else asdict(config.pooling),
        config.num_threads if config.ops in ON_TORCH else None,
        [facts.get("isa"), facts.get("ops")],
        resolved.source.config.get("eos_token_id"),
        dict(defaults),
        texts,
    ]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in _files(resolved):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        for sample in samples(file):
            digest.update(sample)
    return f"fp_{digest.hexdigest()[:_DIGITS]}"


def with_adapter(base: str, digest: bytes) -> str:
    """Return the fingerprint of a model with an adapter of this digest."""
    found = hashlib.sha256(base.encode() + digest).hexdigest()
    return f"fp_{found[:_DIGITS]}"


def _files(resolved: Resolved) -> Iterator[Path]:
    """Yield the weight files, then the tokenizer's files."""
    source, tokenizer = resolved.source, resolved.tokenizer_path
    if source.kind != "dummy" and source.path is not None:
        yield from model_files(source.path)
    if tokenizer is None:
        return
    if tokenizer.is_file():
        yield tokenizer
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    yield from (file for name in _TOKENIZER_FILES if (file := folder / name).is_file())
