"""The model to be quantized, read one layer at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from quire.checkpoint.source import ModelSource, resolve
from quire.checkpoint.weights import Weights, open_weights
from quire.core.config import ModelConfig
from quire.core.dtypes import BFLOAT16, FLOAT32, DType, HostArray, dtype_of
from quire.core.errors import ConfigError, UnsupportedModelError
from quire.layers.embedding import Embedding
from quire.models.layout import parameters
from quire.models.registry import architecture, is_encoder, model_config
from quire.models.sources import Piece, match
from quire.quantize.work import Content, dense

_DTYPES = {"F32": FLOAT32, "BF16": BFLOAT16, "F16": dtype_of("float16")}


class Source:
    """A checkpoint in floating point.

    Attributes:
        found: its location.
        config: its shape.
        weights: its tensors.

    Raises:
        ConfigError: it is already quantized, or has no weights.
        CheckpointError, ModelNotFoundError: its files are damaged or missing.
    """

    def __init__(self, model: str, revision: str | None, download_dir: str | None) -> None:
        self.found: ModelSource = resolve(model, revision=revision, download_dir=download_dir)
        quantized = self.found.config.get("quantization_config")
        if quantized is not None:
            raise ConfigError(
                f"{model} is quantized already ({quantized.get('quant_method', 'unknown')}).",
                fix="Begin with the original.",
                param="MODEL",
            )
        self.config: ModelConfig = model_config(self.found.config)
        if is_encoder(self.config):
            raise UnsupportedModelError(
                f"{model} is an encoder; only decoders can be calibrated.",
                fix="Quantize it while it is loaded: quire serve --quantization int8.",
                param="MODEL",
            )
        if self.config.moe is not None:
            raise UnsupportedModelError(
                f"{model} is a mixture of experts, which cannot be calibrated yet.",
                fix="Quantize it while it is loaded: quire serve --quantization int4.",
                param="MODEL",
            )
        self.weights: Weights = open_weights(self.found)
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        names = architecture(self.config.architecture).names
        for found in match(self.weights, parameters(self.config), names).pieces:
            dtype = self.weights.tensors[found.name].dtype
            if dtype not in _DTYPES:
                raise UnsupportedModelError(
                    f"HostArray {found.name!r} has dtype {dtype}; only {', '.join(_DTYPES)} can be "
                    "quantized.",
                    fix="Begin with the original.",
                )
            self._pieces[found.parameter].append(found)

    def pieces(self, parameter: str) -> list[Piece]:
        """Return the stored tensors whose rows make up a parameter."""
        return self._pieces[parameter]

    def names(self) -> list[str]:
        """Return every parameter of the checkpoint, in the order of the computation."""
        return list(self._pieces)

    def layer_names(self, index: int) -> list[str]:
        return [name for name in self._pieces if name.startswith(f"layers.{index}.")]

    def read(self, parameter: str) -> HostArray:
        """Return a float32 copy of the whole parameter."""
        pieces = self._pieces[parameter]
        parts = [self.stored(piece.name) for piece in pieces]
        whole = np.concatenate(parts, dtype=np.float32)
        if pieces[0].transposed:
            whole = np.ascontiguousarray(whole.T)
        for piece in pieces:
            self.weights.release(piece.name)
        return whole

    def layer(self, index: int) -> dict[str, HostArray]:
        """Return the parameters of a decoder layer: float32."""
        return {name: self.read(name) for name in self.layer_names(index)}

    def dtype(self, parameter: str) -> DType:
        """Return the dtype in which a parameter is stored."""
        return _DTYPES[self.weights.tensors[self._pieces[parameter][0].name].dtype]

    def assemble(self, index: int, content: Content) -> dict[str, HostArray]:
        """Return a layer's parameters, float32, from its tensors in `content`."""
        return {
            name: np.concatenate([dense(content[piece.name]) for piece in self._pieces[name]])
            for name in self.layer_names(index)
        }

    def embedding(self) -> Embedding:
        """Return the embedding as a view of the mapped file: only the rows looked up are read."""
        [table] = self._pieces["embed.weight"]
        positions: Any = None
        if pieces := self._pieces.get("positions.weight"):
            positions = self.stored(pieces[0].name)[self.config.learned_positions_offset :]
        return Embedding(self.stored(table.name), positions, self.config.embedding_scale)

    def stored(self, name: str) -> HostArray:
        """Return a tensor of the checkpoint, a view of the mapped file."""
        return self.weights.read(name)
