"""A decoder with its weights: read from a checkpoint, or random."""

from __future__ import annotations

import logging
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.checkpoint.source import resolve
from quire.checkpoint.weights import Weights, open_weights
from quire.core.config import EngineConfig, ModelConfig
from quire.core.errors import CheckpointError
from quire.models.decoder import Decoder
from quire.models.dummy import RandomParameters
from quire.models.offload import WeightOffload
from quire.models.pack_cache import PackCache
from quire.models.parameters import Progress, parameters
from quire.models.registry import architecture
from quire.models.sources import Piece, match
from quire.ops.table import OpTable

logger = logging.getLogger(__name__)

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_COMPARED_ROWS = 4096
"""Rows of two tensors that are compared at once, so that little memory is taken."""


def load_model(
    config: EngineConfig,
    ops: OpTable,
    cache: PackCache | None = None,
    progress: Progress | None = None,
    offload: WeightOffload | None = None,
) -> Decoder:
    """The model of `config`, in `config.dtype`, for positions below `max_model_len`.

    Its linear weights are packed for `ops`, which alone can compute it, or taken from `cache`;
    those that `offload` names lie in a file.

    Raises:
        CheckpointError: the files are damaged or do not fit the architecture; names the
            tensor, what was expected and what is there.
        ModelNotFoundError: there are no weights.
        ConfigError: what `offload` names cannot be kept in a file.
    """
    dtype = TORCH_DTYPES[config.dtype]
    source: RandomParameters | StoredParameters
    if config.load_format == "dummy":
        source = RandomParameters(config.model, dtype, config.seed, progress)
    else:
        files = resolve(config.model_path, load_format=config.load_format)
        source = StoredParameters(open_weights(files), config.model, dtype, progress)
    build = partial(
        Decoder,
        config.model,
        source,
        config.scheduler.max_model_len,
        ops,
        place=offload.place if offload else None,
    )
    if cache is not None and (stored := cache.linears()):
        try:
            return build(stored)
        except ValueError as error:
            logger.warning("The packed weights are packed again: %s", error)
            cache.drop()
    return build()


class StoredParameters:
    """The parameters in a checkpoint, converted to `dtype`: a `ParameterSource`.

    Tensors that need no conversion are handed out where they lie in the mapped file, and the
    memory that the file's pages take is given back when the next parameter is asked for.

    Raises:
        CheckpointError: a tensor is missing or superfluous, or does not fit; when it is read: it
            is not floating point, or has values that `dtype` cannot hold.
    """

    def __init__(
        self,
        weights: Weights,
        model: ModelConfig,
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> None:
        sources = match(weights, parameters(model), architecture(model.architecture).names)
        self._weights = weights
        self._dtype = dtype
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        for piece in sources.pieces:
            self._pieces[piece.parameter].append(piece)
        self._progress = progress
        self._done = 0
        self._total = sum(weights.tensors[piece.stored].nbytes for piece in sources.pieces)
        self._handed_out: list[Piece] = []
        for kept, other in sources.copies:
            _check_copy(weights, kept, other)

    def has(self, name: str) -> bool:
        return name in self._pieces

    def parts(self, name: str) -> list[Tensor]:
        for piece in self._handed_out:
            self._weights.release(piece.stored)
        self._handed_out = self._pieces[name]
        parts = [self._read(piece) for piece in self._handed_out]
        if self._progress is not None:
            self._progress(self._done, self._total)
        return parts

    def tensor(self, name: str) -> Tensor:
        return torch.cat(self.parts(name))

    def _read(self, piece: Piece) -> Tensor:
        info = self._weights.tensors[piece.stored]
        values = as_tensor(self._weights.read(piece.stored), bfloat16=info.dtype == "BF16")
        if not values.is_floating_point():
            raise CheckpointError(
                f"Tensor {piece.stored!r} has dtype {info.dtype}; expected floating point.",
                fix="Use the unquantized model, or a GGUF file in Q8_0 or Q4_0.",
            )
        self._done += info.nbytes
        values = values.to(self._dtype)
        # Half precision ends at 65504; beyond it a weight would silently become infinite.
        if self._dtype == torch.float16 and not bool(torch.isfinite(values).all()):
            raise CheckpointError(
                f"Tensor {piece.stored!r} has values that float16 cannot hold.",
                fix="Use --dtype bfloat16 or --dtype float32.",
                param="--dtype",
            )
        return values.t().contiguous() if piece.transposed else values


def _check_copy(weights: Weights, kept: str, other: str) -> None:
    """Tied tensors that are stored twice must hold the same values."""
    one, two = weights.read(kept), weights.read(other)
    for row in range(0, len(one), _COMPARED_ROWS):
        rows = slice(row, row + _COMPARED_ROWS)
        if not np.array_equal(one[rows], two[rows]):
            raise CheckpointError(
                f"Tensors {kept!r} and {other!r} differ, but config.json ties them.",
                fix="Set tie_word_embeddings to false if the model was trained so.",
            )
    weights.release(kept)
    weights.release(other)


def as_tensor(values: npt.NDArray[Any], *, bfloat16: bool) -> Tensor:
    """The array as a tensor on the same memory; `bfloat16` says that it holds such bits."""
    if not values.flags.writeable:
        values = values.copy()
    if bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)
