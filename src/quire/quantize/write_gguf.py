"""Write a job's result: one GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from quire.checkpoint.gguf_rope import factor_tensors
from quire.checkpoint.gguf_types import PLAIN
from quire.checkpoint.gguf_writer import GGUFWriter, PlannedTensor, Value
from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.errors import ConfigError
from quire.quantize.gguf_check import checked_metadata
from quire.quantize.gguf_export import ExportedTensor, exported_tensors
from quire.quantize.gguf_target import Blocks, GGUFTarget
from quire.quantize.recipe import Recipe
from quire.quantize.source import Source
from quire.quantize.work import Content
from quire.system.records import dataclass
from quire.text.tokenizers.gguf_vocabulary import tokenizer_metadata

_ROUTER = ".ffn_gate_inp"
_TABLES = ("token_embd.weight", "output.weight")
_WIDE = ("q8_0", "f16", "bf16")
_PLAIN = {np.dtype(dtype): name for name, dtype in PLAIN.items()}
_FILE_TYPES = {
    "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 11,
    "q4_k": 14, "q5_k": 16, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32, "mxfp4": 38,
}  # fmt: skip
"""llama.cpp's file type numbers, by the type of most of a file's tensors."""


@dataclass(frozen=True, slots=True)
class _Planned:
    tensor: PlannedTensor
    make: Callable[[], HostArray]


def gguf_metadata(source: Source, recipe: Recipe) -> dict[str, Value]:
    """Return all keys of the file.

    Raises:
        UnsupportedModelError: GGUF cannot describe the model or its tokenizer.
        ConfigError: the model has no tokenizer.
    """
    path = source.found.tokenizer_path
    if path is None:
        raise ConfigError(
            f"{source.found.name} has no tokenizer, which a GGUF file must hold.",
            fix="Add its files.",
            param="MODEL",
        )
    return {
        **checked_metadata(source.config, Path(source.found.name).name, _shapes(source)),
        "general.file_type": _FILE_TYPES[recipe.scheme],
        **tokenizer_metadata(path, source.config.vocab_size),
    }


def write_gguf(source: Source, recipe: Recipe, content: Content, path: Path) -> None:
    """Write `content`, and the other tensors: vectors as float32, tables quantized.

    The table that computes logits gets at least Q6_K, as in llama.cpp's tools, because its errors
    affect every token directly.
    """
    planned = list(_plan(source, recipe, content))
    keys = gguf_metadata(source, recipe)
    with GGUFWriter(path, keys, [entry.tensor for entry in planned]) as writer:
        for entry in planned[len(writer.finished) :]:
            writer.add(entry.tensor.name, entry.make())


def _plan(source: Source, recipe: Recipe, content: Content) -> Iterator[_Planned]:
    for name, factors in factor_tensors(source.config.rope).items():
        yield _Planned(PlannedTensor(name, "F32", factors.shape), factors.copy)
    for exported in exported_tensors(source.config, _shapes(source)):
        if exported.name in _TABLES:
            yield _table(source, recipe, exported)
            continue
        values = [content[name] for name in exported.sources if name in content]
        blocks = [value for value in values if isinstance(value, Blocks)]
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if blocks:
            yield _ordered(exported, blocks[0].type, [each.raw for each in blocks])
        else:
            stored = [source.values(source.parts[name]) for name in exported.sources]
            yield _plain(exported, arrays or stored)


def _shapes(source: Source) -> dict[str, tuple[int, ...]]:
    return {name: part.shape for name, part in source.parts.items()}


def _table(source: Source, recipe: Recipe, exported: ExportedTensor) -> _Planned:
    """Plan the embedding or the output projection; it is quantized when it is written."""
    logits = exported.name == "output.weight" or source.config.tie_word_embeddings
    target = GGUFTarget("q6_k" if logits and recipe.scheme not in _WIDE else recipe.scheme)
    [name] = exported.sources
    part = source.parts[name]

    def make() -> HostArray:
        found = target.nearest(source.values(part)).raw
        source.weights.release(part.source)
        return found

    type_ = target.type_of(exported.shape[1])
    return _Planned(PlannedTensor(exported.name, type_, exported.shape), make)


def _plain(exported: ExportedTensor, parts: Sequence[HostArray]) -> _Planned:
    """Plan a vector or a router, which are float32 in GGUF, or a matrix that is not quantized."""
    if parts[0].ndim == 1 or _ROUTER in exported.name:
        parts = [converted(part, FLOAT32) for part in parts]
    return _ordered(exported, _PLAIN[parts[0].dtype], parts)


def _ordered(exported: ExportedTensor, type_: str, parts: Sequence[HostArray]) -> _Planned:
    """Plan rows in GGUF's order, all experts together."""

    def make() -> HostArray:
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return exported.translation.undo(rows)

    return _Planned(PlannedTensor(exported.name, type_, exported.shape), make)
