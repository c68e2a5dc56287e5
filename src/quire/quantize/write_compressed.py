"""Write a job's result: safetensors with compressed-tensors' configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quire.checkpoint.safetensors_writer import StoredTensor, write_checkpoint
from quire.core.dtypes import dtype_of
from quire.core.quantized import QuantizedWeight
from quire.quantize.compressed import quantization_config, stored, stored_weight
from quire.quantize.recipe import Recipe
from quire.quantize.source import Source
from quire.quantize.work import Content

_NOT_COPIED = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack")
"""Suffixes of weights in any format; their indexes append `.index.json`."""


def write_compressed(
    source: Source, recipe: Recipe, content: Content, folder: Path, max_shard_bytes: int
) -> None:
    """Write a whole model into an empty `folder`: `content`, and the unchanged tensors."""
    tensors = list(_tensors(source, recipe, content))
    write_checkpoint(folder, tensors, max_shard_bytes)
    _copy_files(source, folder)
    written = {tensor.name for tensor in tensors}
    ignored = [name for name in _linear_modules(source) if f"{name}.weight_scale" not in written]
    config = source.found.config | {"quantization_config": quantization_config(recipe, ignored)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _tensors(source: Source, recipe: Recipe, content: Content) -> Iterator[StoredTensor]:
    """Yield every tensor of the checkpoint, in the order of the computation."""
    scale_dtype = dtype_of(source.config.dtype)
    for name in source.names():
        for part in source.pieces(name):
            value = content.get(part.name)
            if isinstance(value, QuantizedWeight):
                module = part.name.removesuffix(".weight")
                yield from stored_weight(module, value, recipe, scale_dtype)
            elif isinstance(value, np.ndarray):
                same = part.name == part.source  # perhaps a vector stored as a matrix of one row
                shape = source.weights.tensors[part.source].shape if same else value.shape
                yield stored(part.name, value.reshape(shape))
            else:
                yield _unchanged(source, part.source)


def _unchanged(source: Source, name: str) -> StoredTensor:
    info = source.weights.tensors[name]
    return StoredTensor(name, info.dtype, info.shape, lambda: source.weights.read(name))


def _linear_modules(source: Source) -> Iterator[str]:
    """Yield the names of the model's linear layers, a tied output projection included."""
    for name in source.names():
        for part in source.pieces(name):
            if name.startswith("layers.") and part.columns:
                yield part.name.removesuffix(".weight")
    yield "lm_head"


def _copy_files(source: Source, folder: Path) -> None:
    """Copy all files except weights and config: tokenizer, generation config, licence."""
    path = source.found.path
    assert path is not None, "the model has files"
    for file in sorted(path.iterdir()):
        if not file.is_file() or file.name == "config.json" or file.name.startswith("."):
            continue
        if not file.name.removesuffix(".index.json").endswith(_NOT_COPIED):
            shutil.copyfile(file, folder / file.name)
