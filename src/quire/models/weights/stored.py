"""The parameters of a checkpoint: read, converted, and rounded where that is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quire.checkpoint.weights import Weights
from quire.core.dtypes import FLOAT32, DType, HostArray, converted, is_float
from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.core.quantized import QuantizedWeight, Weight, dense
from quire.models.architecture import WeightNames
from quire.models.forms import linear_names
from quire.models.layout import head_name, parameters
from quire.models.parameters import Parameter, Progress
from quire.models.registry import weight_names
from quire.models.weights.sources import Piece, match
from quire.quant.bits import float32
from quire.quant.names import Rounding
from quire.quant.scheme import Method

_COMPARED_ROWS = 4096
"""Rows of two tensors that are compared at once, so that little memory is taken."""


class StoredParameters:
    """The parameters in a checkpoint, converted to `dtype`: a `ParameterSource`.

    Tensors that need no conversion are handed out where they lie in the mapped file, and the
    memory that the file's pages take is given back when the next parameter is asked for.

    Args:
        method: how the checkpoint says that its linear layers are quantized.
        rounding: how to quantize linear weights that are stored dense.
        tower: parameters and names of the model's tower, to read these.

    Raises:
        CheckpointError: a tensor is missing or superfluous, or does not fit; when it is read: it
            is not floating point, has values that `dtype` cannot hold, or contradicts itself; or a
            router is not finite.
    """

    def __init__(
        self,
        weights: Weights,
        model: ModelConfig,
        dtype: DType,
        progress: Progress | None = None,
        *,
        method: Method | None = None,
        rounding: Rounding | None = None,
        tower: tuple[Sequence[Parameter], WeightNames] | None = None,
    ) -> None:
        wanted, names = tower or (parameters(model), weight_names(model))
        sources = match(weights, wanted, names, method)
        self.dtype = dtype
        self._weights = weights
        self._rounding = rounding
        self._linear = linear_names(model)
        self._head = head_name(model)
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        for piece in sources.pieces:
            self._pieces[piece.parameter].append(piece)
        self._kv_scales = sources.kv_scales
        self._exact = {p.name for p in wanted if p.kind == "exact"}
        self._routers = {p.name for p in wanted if p.kind == "router" or ".router." in p.name}
        self._stacks: dict[str, QuantizedWeight] = {}
        self._progress = progress
        self._done = 0
        self._total = sum(map(self._stored_bytes, sources.pieces))
        self._handed_out: list[Piece] = []
        for kept, other in sources.copies:
            _check_copy(weights, kept, other)
        for name in sources.zeros:
            _check_zero(weights, name)

    def has(self, name: str) -> bool:
        return name in self._pieces or name in self._kv_scales

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        parts = self._read_all(name)
        whole = [part for part in parts if isinstance(part, QuantizedWeight)]
        if len(whole) == len(parts):
            return _of_one_input(whole)
        if whole:  # of layers that were merged only some are quantized
            return [dense(part, self.dtype) for part in parts]
        return self._rounded(name, [part for part in parts if isinstance(part, np.ndarray)])

    def tensor(self, name: str) -> HostArray:
        if name in self._kv_scales:
            stored = self._kv_scales[name]
            values = float32(self._weights.read(stored), self._weights.tensors[stored].dtype)
            return values.reshape(-1).copy()
        if name in self._exact:
            return np.concatenate([dense(p, FLOAT32).reshape(-1) for p in self._read_all(name)])
        return np.concatenate([dense(part, self.dtype) for part in self._read_all(name)])

    def _stored_bytes(self, piece: Piece) -> int:
        stored = [self._weights.tensors[name] for name in piece.stored.values()]
        size = sum(tensor.nbytes for tensor in stored)
        if piece.cut is None:
            return size
        return size * piece.rows // (stored[0].shape[0] * piece.cut.height)

    def _read_all(self, name: str) -> list[Weight]:
        for piece in self._handed_out:
            for stored in piece.stored.values():
                self._weights.release(stored)
        self._handed_out = self._pieces[name]
        self._stacks.clear()
        parts = [self._read(piece) for piece in self._handed_out]
        if self._progress is not None:
            self._progress(self._done, self._total)
        return parts

    def _rounded(
        self, name: str, parts: list[HostArray]
    ) -> list[HostArray] | list[QuantizedWeight]:
        if self._rounding is None or name not in self._linear:
            return parts
        rounder = self._rounding.head if name == self._head else self._rounding.layers
        if rounder is None:
            return parts
        return [rounder.quantize(part) for part in parts]

    def _read(self, piece: Piece) -> Weight:
        self._done += self._stored_bytes(piece)
        if piece.form is None:
            return self._read_dense(piece)
        if piece.cut is None:
            weight = self._quantized(piece, piece.rows)
        else:
            if piece.name not in self._stacks:  # unpacked once for all pieces
                experts = self._weights.tensors[piece.name].shape[0]
                self._stacks[piece.name] = self._quantized(piece, experts * piece.cut.height)
            weight = piece.cut.of_quantized(self._stacks[piece.name], piece.rows)
        return replace(weight, float_activations=piece.form.float_activations)

    def _quantized(self, piece: Piece, rows: int) -> QuantizedWeight:
        """Return the stored weight of a piece; of experts that share a tensor, that of all."""
        if piece.scheme is None:
            weight = self._weights.quantized(piece.name)
            assert weight is not None, f"{piece.name} has a form, and no codes"
            return weight
        specs = piece.scheme.stored(rows, piece.columns)
        tensors = {
            suffix: self._side(name, raw=specs[suffix].raw) for suffix, name in piece.stored.items()
        }
        if piece.cut is not None:
            tensors = {suffix: values.reshape(rows, -1) for suffix, values in tensors.items()}
        try:
            with np.errstate(all="ignore"):  # a damaged scale may be anything
                return piece.scheme.read(tensors, rows, piece.columns)
        except ValueError as error:
            raise CheckpointError(
                f"The layer of tensor {piece.name!r} is malformed: {error}.",
                fix="Download the model again, or use another copy of it.",
            ) from None

    def _side(self, name: str, *, raw: bool) -> HostArray:
        values, dtype = self._weights.read(name), self._weights.tensors[name].dtype
        return values if raw or dtype in ("I32", "I64", "I8") else float32(values, dtype)

    def _read_dense(self, piece: Piece) -> HostArray:
        name = piece.name
        stored = self._weights.read(name)
        if not is_float(stored.dtype):
            dtype = self._weights.tensors[name].dtype
            raise CheckpointError(
                f"Tensor {name!r} has dtype {dtype}; expected floating point.",
                fix="Where the model is quantized, its config.json must have the "
                "quantization_config that was published with it.",
            )
        if piece.cut is not None:
            stored = piece.cut.of(stored, piece.rows, transposed=piece.transposed)
        values = converted(stored, FLOAT32 if piece.parameter in self._exact else self.dtype)
        # Half precision ends at 65504; beyond it a weight would silently become infinite.
        if self.dtype == np.float16 and not np.isfinite(values).all():
            raise CheckpointError(
                f"Tensor {name!r} has values that float16 cannot hold.",
                fix="Use --dtype bfloat16 or --dtype float32.",
                param="--dtype",
            )
        if piece.parameter in self._routers and not np.isfinite(values).all():
            layer = piece.parameter.split(".")[1]
            raise CheckpointError(
                f"Tensor {name!r}, the router of layer {layer}, has values that are not finite "
                f"({self._weights.tensors[name].file.name}).",
                fix="Download the model again, or use another copy of it.",
            )
        if piece.cut is None and values.ndim > 1 + bool(piece.columns):  # see `_Matcher._dense`
            values = values.reshape(piece.rows, -1) if piece.columns else values.reshape(-1)
        return _transposed(values) if piece.transposed else values


def _transposed(values: HostArray) -> HostArray:
    """Return the transpose, copied as integers: numpy copies bfloat16 number by number."""
    bits = values.view(f"u{values.itemsize}")
    return np.ascontiguousarray(bits.T).view(values.dtype)


def _of_one_input(parts: list[QuantizedWeight]) -> list[QuantizedWeight]:
    """Give merged layers one input scale: their common input's range must hold for all."""
    scales = [part.input_scale for part in parts if part.input_scale is not None]
    if not scales or len(set(scales)) == 1 == len(scales) / len(parts):
        return parts
    return [replace(part, input_scale=max(scales)) for part in parts]


def _check_copy(weights: Weights, kept: str, other: str) -> None:
    """Check that tied tensors that are stored twice hold the same values."""
    one, two = weights.read(kept), weights.read(other)
    same_type = one.dtype == two.dtype
    for row in range(0, len(one), _COMPARED_ROWS):
        parts = [each[row : row + _COMPARED_ROWS] for each in (one, two)]
        first, second = (each.view(np.uint8) if same_type else each.astype(float) for each in parts)
        if not np.array_equal(first, second):
            raise CheckpointError(
                f"Tensors {kept!r} and {other!r} differ, but config.json ties them.",
                fix="Set tie_word_embeddings to false if the model was trained so.",
            )
    weights.release(kept)
    weights.release(other)


def _check_zero(weights: Weights, name: str) -> None:
    if weights.read(name).any():
        raise CheckpointError(
            f"Tensor {name!r} is a bias, which the architecture does not have there, and not zero.",
            fix="Use weights and config.json of the same model.",
        )
