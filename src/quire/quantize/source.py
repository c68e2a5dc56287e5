"""The model that is to be quantized, read a layer at a time."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from quire.checkpoint.source import ModelSource, resolve
from quire.checkpoint.weights import Weights, open_weights
from quire.core.config import ModelConfig
from quire.core.errors import ConfigError, UnsupportedModelError
from quire.layers.embedding import Embedding
from quire.models.layout import parameters
from quire.models.registry import architecture, is_encoder, model_config
from quire.models.sources import Piece, match
from quire.ops.torch_arrays import tensor
from quire.quantize.work import Content, dense

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Source:
    """A checkpoint in floating point.

    Attributes:
        found: where it is.
        config: its shape.
        weights: its tensors.

    Raises:
        ConfigError: it is quantized already, or has no weights.
        CheckpointError, ModelNotFoundError: its files are at fault.
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
        self.weights: Weights = open_weights(self.found)
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        names = architecture(self.config.architecture).names
        for found in match(self.weights, parameters(self.config), names).pieces:
            dtype = self.weights.tensors[found.name].dtype
            if dtype not in _DTYPES:
                raise UnsupportedModelError(
                    f"Tensor {found.name!r} has dtype {dtype}; only {', '.join(_DTYPES)} can be "
                    "quantized.",
                    fix="Begin with the original.",
                )
            self._pieces[found.parameter].append(found)

    def pieces(self, parameter: str) -> list[Piece]:
        """The stored tensors whose rows make up a parameter."""
        return self._pieces[parameter]

    def names(self) -> list[str]:
        """Every parameter that is there, in the order of the computation."""
        return list(self._pieces)

    def layer_names(self, index: int) -> list[str]:
        return [name for name in self._pieces if name.startswith(f"layers.{index}.")]

    def read(self, parameter: str) -> Tensor:
        """The whole parameter: float32, in memory of its own."""
        pieces = self._pieces[parameter]
        parts = [self.stored(piece.name) for piece in pieces]
        whole = torch.cat([part.float() for part in parts])
        if pieces[0].transposed:
            whole = whole.t().contiguous()
        for piece in pieces:
            self.weights.release(piece.name)
        return whole

    def layer(self, index: int) -> dict[str, Tensor]:
        """The parameters of a decoder layer: float32."""
        return {name: self.read(name) for name in self.layer_names(index)}

    def dtype(self, parameter: str) -> torch.dtype:
        """What a parameter is stored as."""
        return _DTYPES[self.weights.tensors[self._pieces[parameter][0].name].dtype]

    def assemble(self, index: int, content: Content) -> dict[str, Tensor]:
        """A layer's parameters, float32, of the tensors that became of it."""
        return {
            name: torch.cat([dense(content[piece.name]) for piece in self._pieces[name]])
            for name in self.layer_names(index)
        }

    def embedding(self) -> Embedding:
        """On the mapped file: only the rows that are looked up are read."""
        [table] = self._pieces["embed.weight"]
        positions = None
        if pieces := self._pieces.get("positions.weight"):
            positions = self.stored(pieces[0].name)[self.config.learned_positions_offset :]
        return Embedding(self.stored(table.name), positions, self.config.embedding_scale)

    def stored(self, name: str) -> Tensor:
        """A tensor of the checkpoint as it lies in the mapped file."""
        return tensor(self.weights.read(name))
