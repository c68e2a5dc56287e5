"""A decoder with its weights: read from a checkpoint, or random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from quire.models.dummy import random_tensors
from quire.models.parameters import parameters
from quire.models.registry import architecture
from quire.models.sources import Piece, match
from quire.ops.table import OpTable

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(config: EngineConfig, ops: OpTable, progress: Progress | None = None) -> Decoder:
    """The model of `config`, in `config.dtype`, for positions below `max_model_len`.

    Its linear weights are packed for `ops`, which alone can compute it.

    Raises:
        CheckpointError: the files are damaged or do not fit the architecture; names the
            tensor, what was expected and what is there.
        ModelNotFoundError: there are no weights.
    """
    dtype = TORCH_DTYPES[config.dtype]
    if config.load_format == "dummy":
        tensors = random_tensors(config.model, dtype, config.seed, progress)
    else:
        source = resolve(config.model_path, load_format=config.load_format)
        tensors = read_tensors(open_weights(source), config.model, dtype, progress)
    return Decoder(config.model, tensors, config.scheduler.max_model_len, ops)


def read_tensors(
    weights: Weights, model: ModelConfig, dtype: torch.dtype, progress: Progress | None = None
) -> dict[str, Tensor]:
    """The decoder's parameters by name, converted to `dtype`, fused as `parameters` says."""
    wanted = parameters(model)
    sources = match(weights, wanted, architecture(model.architecture).names)
    total = sum(weights.tensors[piece.stored].nbytes for piece in sources.pieces)
    tensors = {p.name: torch.empty(p.shape, dtype=dtype) for p in wanted}
    done = 0
    for piece in sources.pieces:
        _fill(tensors, weights, piece)
        done += weights.tensors[piece.stored].nbytes
        if progress is not None:
            progress(done, total)
    for kept, other in sources.copies:
        if not np.array_equal(weights.read(kept), weights.read(other)):
            raise CheckpointError(
                f"Tensors {kept!r} and {other!r} differ, but config.json ties them.",
                fix="Set tie_word_embeddings to false if the model was trained so.",
            )
    return tensors


def _fill(tensors: Mapping[str, Tensor], weights: Weights, piece: Piece) -> None:
    """Copy a stored tensor into its rows, converting it."""
    target = tensors[piece.parameter][piece.row : piece.row + piece.rows]
    info = weights.tensors[piece.stored]
    values = as_tensor(weights.read(piece.stored), bfloat16=info.dtype == "BF16")
    if not values.is_floating_point():
        raise CheckpointError(
            f"Tensor {piece.stored!r} has dtype {info.dtype}; expected floating point.",
            fix="Use the unquantized model, or a GGUF file in Q8_0 or Q4_0.",
        )
    target.copy_(values.t() if piece.transposed else values)
    # Half precision ends at 65504; beyond it a weight would silently become infinite.
    if target.dtype == torch.float16 and not bool(torch.isfinite(target).all()):
        raise CheckpointError(
            f"Tensor {piece.stored!r} has values that float16 cannot hold.",
            fix="Use --dtype bfloat16 or --dtype float32.",
            param="--dtype",
        )


def as_tensor(values: npt.NDArray[Any], *, bfloat16: bool) -> Tensor:
    """The array as a tensor on the same memory; `bfloat16` says that it holds such bits."""
    if not values.flags.writeable:
        values = values.copy()
    if bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)
