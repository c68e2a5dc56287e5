"""The model to be quantized, read one layer at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from quire.checkpoint.source import ModelSource, resolve
from quire.checkpoint.weights import Weights
from quire.core.dtypes import BFLOAT16, FLOAT32, DType, HostArray, dtype_of
from quire.core.errors import ConfigError, UnsupportedModelError
from quire.core.model_config import ModelConfig
from quire.layers.embedding import Embedding
from quire.models.architecture import WeightNames
from quire.models.layout import parameters
from quire.models.parameters import Parameter
from quire.models.registry import is_encoder, model_config, weight_names
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.sources import Piece, match
from quire.quant.registry import quantization_config
from quire.quantize.work import Content, dense
from quire.system.records import dataclass

_UNEVEN = "normalizes values, and its layers differ; it cannot be calibrated yet"
_DTYPES = {"F32": FLOAT32, "BF16": BFLOAT16, "F16": dtype_of("float16")}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [row, row + rows) of a parameter: a tensor of the checkpoint that is written.

    Attributes:
        name: of that tensor. It is the stored one's, unless that has all experts of a layer:
            quantized experts are written one by one.
        columns: 0 of a vector.
        piece: where it is stored.
    """

    name: str
    row: int
    rows: int
    columns: int
    piece: Piece

    @property
    def source(self) -> str:
        """The stored tensor."""
        return self.piece.name

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in], or [width] of a vector."""
        return (self.rows, self.columns) if self.columns else (self.rows,)


class Source:
    """A checkpoint in floating point.

    Attributes:
        found: its location.
        config: its shape.
        weights: its tensors.
        parts: name → each tensor that can be written.

    Raises:
        ConfigError: it is already quantized, or has no weights.
        CheckpointError, ModelNotFoundError: its files are damaged or missing.
    """

    def __init__(self, model: str, revision: str | None, download_dir: str | None) -> None:
        self.found: ModelSource = resolve(model, revision=revision, download_dir=download_dir)
        quantized = quantization_config(self.found.config)
        if quantized is not None:
            raise ConfigError(
                f"{model} is quantized already ({quantized['quant_method']}).",
                fix="Begin with the original.",
                param="MODEL",
            )
        self.config: ModelConfig = model_config(self.found.config)
        for refused, why, loaded in (
            (is_encoder(self.config), "is an encoder; only decoders can be calibrated", "int8"),
            (self.config.recurrent, "has recurrent layers, which cannot be calibrated yet", "int4"),
            (self.config.v_norm, _UNEVEN, "int4"),
        ):
            if refused:
                raise _refusal(f"{model} {why}.", loaded)
        self.weights: Weights = open_weights(self.found)
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        names, wanted = weight_names(self.config), parameters(self.config)
        for found in match(self.weights, wanted, names).pieces:
            dtype = self.weights.tensors[found.name].dtype
            if dtype not in _DTYPES:
                raise UnsupportedModelError(
                    f"Tensor {found.name!r} has dtype {dtype}; only {', '.join(_DTYPES)} can be "
                    "quantized.",
                    fix="Begin with the original.",
                )
            self._pieces[found.parameter].append(found)
        self._parts = {p.name: self._parts_of(p, names) for p in wanted}
        self.parts = {part.name: part for parts in self._parts.values() for part in parts}

    def pieces(self, parameter: str) -> list[Part]:
        """Return the tensors whose rows make up a parameter."""
        return self._parts.get(parameter, [])

    def _parts_of(self, parameter: Parameter, names: WeightNames) -> list[Part]:
        pieces = self._pieces[parameter.name]
        written = [piece.name for piece in pieces]
        if any(piece.cut is not None for piece in pieces):
            written = [name for name, _ in names.stored(parameter)]
            if len(written) != len(pieces) or len(set(written)) != len(written):
                why = "has no names for experts one by one, which compressed files need."
                raise _refusal(f"{parameter.name} {why}", "int4")
        return [
            Part(name, piece.row, piece.rows, piece.columns, piece)
            for name, piece in zip(written, pieces, strict=True)
        ]

    def names(self) -> list[str]:
        """Return every parameter of the checkpoint, in the order of the computation."""
        return [name for name, parts in self._parts.items() if parts]

    def layer_names(self, index: int) -> list[str]:
        return [name for name in self.names() if name.startswith(f"layers.{index}.")]

    def read(self, parameter: str) -> HostArray:
        """Return a float32 copy of the whole parameter."""
        parts = self._parts[parameter]
        rows, columns = sum(part.rows for part in parts), parts[0].columns
        whole = np.empty((rows, columns) if columns else (rows,), np.float32)
        for part in parts:
            whole[part.row : part.row + part.rows] = self.values(part)
        for source in {part.source for part in parts}:
            self.weights.release(source)
        return whole

    def values(self, part: Part) -> HostArray:
        """Return a part, [out, in], in the dtype in which it is stored."""
        values, piece = self.stored(part.source), part.piece
        if piece.cut is not None:
            values = piece.cut.of(values, piece.rows, transposed=piece.transposed)
        matrix: HostArray = values.T if piece.transposed else values
        return matrix.reshape(part.shape)

    def layer(self, index: int) -> dict[str, HostArray]:
        """Return the parameters of a decoder layer: float32."""
        return {name: self.read(name) for name in self.layer_names(index)}

    def dtype(self, parameter: str) -> DType:
        return _DTYPES[self.weights.tensors[self._parts[parameter][0].source].dtype]

    def assemble(self, index: int, content: Content) -> dict[str, HostArray]:
        """Return a layer's parameters, float32, from its tensors in `content`."""
        return {
            name: np.concatenate([dense(content[part.name]) for part in self._parts[name]])
            for name in self.layer_names(index)
        }

    def embedding(self) -> Embedding:
        """Return the embedding as a view of the mapped file: only the rows looked up are read."""
        [table] = self._parts["embed.weight"]
        positions: Any = None
        if parts := self.pieces("positions.weight"):
            positions = self.stored(parts[0].source)[self.config.learned_positions_offset :]
        return Embedding(self.stored(table.source), positions, self.config.embedding_scale)

    def stored(self, name: str) -> HostArray:
        """Return a tensor of the checkpoint, a view of the mapped file."""
        return self.weights.read(name)


def _refusal(why: str, quantization: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        why,
        fix=f"Quantize it while it is loaded: quire serve --quantization {quantization}.",
        param="MODEL",
    )
