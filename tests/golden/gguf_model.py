"""Writes a Hugging Face folder as a GGUF file, with Quire's own writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quire.checkpoint.gguf_rope import factor_tensors
from quire.checkpoint.gguf_writer import GGUFWriter, PlannedTensor
from quire.quant.ggml import fitting_type, quantize_rows
from quire.quantize.gguf_check import checked_metadata
from quire.quantize.gguf_export import exported_tensors
from quire.quantize.source import Source
from quire.text.tokenizers.gguf_vocabulary import tokenizer_metadata


def write_gguf_model(
    folder: Path, path: Path, type_: str = "F32", *, tokenizer: bool = False
) -> Path:
    """The model in `folder`, its matrices as `type_` where their rows allow."""
    source = Source(str(folder), None, None)
    model = source.config
    shapes = {name: part.shape for name, part in source.parts.items()}
    keys = checked_metadata(model, folder.name, shapes)
    if tokenizer:
        keys |= tokenizer_metadata(folder, model.vocab_size)
    factors = factor_tensors(model.rope)
    tensors = exported_tensors(model, shapes)
    types = [
        fitting_type(type_, tensor.shape[-1]) if len(tensor.shape) > 1 else "F32"
        for tensor in tensors
    ]
    planned = [
        *(PlannedTensor(name, "F32", values.shape) for name, values in factors.items()),
        *(PlannedTensor(t.name, kind, t.shape) for t, kind in zip(tensors, types, strict=True)),
    ]
    with GGUFWriter(path, keys, planned) as writer:
        for name, values in factors.items():
            writer.add(name, values)
        for tensor, kind in zip(tensors, types, strict=True):
            parts = [source.values(source.parts[name]) for name in tensor.sources]
            values = tensor.translation.undo(np.concatenate(parts).astype(np.float32))
            if kind not in ("F32", "F16"):
                values = quantize_rows(values.reshape(-1, values.shape[-1]), kind)
            writer.add(tensor.name, values.astype(np.float16) if kind == "F16" else values)
    return path
