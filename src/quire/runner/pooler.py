"""The output of a pooling model: one vector of a prompt's hidden states instead of tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.checkpoint.safetensors import SafetensorsFile
from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.dtypes import FLOAT32, converted
from quire.core.errors import CheckpointError
from quire.core.model_config import DenseConfig
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.quant.bits import float32
from quire.quant.scheme import FLOATS
from quire.runner.images import EncoderCache
from quire.runner.inputs import StepInputs
from quire.runner.model import Model
from quire.runner.state import SequenceStates

Vector = NDArray[np.float64]


class Dense:
    """A linear layer behind pooling. A vector's bits do not depend on the others.

    Raises:
        CheckpointError: its file is damaged, or has other tensors than stated.
    """

    def __init__(self, config: DenseConfig, folder: Path) -> None:
        path, shape = folder / config.file, (config.rows, config.columns)
        self._weight = _tensor(path, "linear.weight", shape)
        self._bias = _tensor(path, "linear.bias", shape[:1]) if config.bias else np.float32(0)
        self._activation = _ACTIVATIONS[config.activation]

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [n, rows] for [n, columns]."""
        found = np.empty((len(vectors), len(self._weight)), np.float32)
        for row, vector in zip(found, vectors, strict=True):
            row[:] = self._activation(self._weight @ vector + self._bias)
        return found


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: (1 + np.tanh(x / 2)) / 2,
}


def _tensor(path: Path, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    file = SafetensorsFile(path)
    info = file.tensors.get(name)
    if info is None or info.shape != shape or info.dtype not in FLOATS:
        found = "missing" if info is None else f"{info.dtype} {list(info.shape)}"
        raise CheckpointError(
            f"{path.parent.name}/{path.name}: tensor {name!r} is {found}; expected "
            f"{', '.join(FLOATS)} {list(shape)}.",
            fix="Download the model again.",
        )
    return np.ascontiguousarray(float32(file.read(name), info.dtype))


class Pooler:
    """Pools the hidden states of steps; `states.pooled` has the intermediate result of a prompt.

    A sum over tokens is one chain of float64 additions in their order, so its bits do not depend on
    chunks.
    """

    def __init__(
        self,
        config: EngineConfig,
        states: SequenceStates,
        model: Model,
        ops: Ops,
        encoder: EncoderCache | None = None,
    ) -> None:
        assert config.pooling is not None
        self._encoder = encoder
        self._has_head = model.decoder.config.num_labels > 0
        self._config = config.pooling
        self._ops = ops
        self._states = states
        self._model = model
        self._dense = [Dense(layer, Path(config.model_path)) for layer in config.pooling.dense]

    def pool(self, step: SchedulerOutput, slots: Column, inputs: StepInputs) -> ModelOutput:
        """Compute a step. An exception leaves no trace of it."""
        output = ModelOutput(np.full((len(slots), 1), -1, dtype=np.int64))
        done = inputs.entries
        unfinished: dict[int, Vector] = {}
        if self._config.pooling_type == "LAST":
            pooled = self._model.forward(inputs, inputs.sampling_rows)
        else:
            pooled, unfinished = self._with_earlier(step, slots, inputs, done)
        if self._has_head and len(done):
            pooled = self._model.logits(pooled)
        vectors = converted(self._ops.numpy(pooled), FLOAT32)
        for row, slot in enumerate(slots[done].tolist() if self._states.images else ()):
            if (images := self._states.images.get(slot)) is not None:
                assert self._encoder is not None, "the engine reads no images"
                vectors[row] = converted(self._encoder.rows(images.spans[0])[0], FLOAT32)
        for layer in self._dense:
            vectors = layer(vectors)
        for entry, vector in zip(done.tolist(), vectors, strict=True):
            name = step.request_ids[entry]
            if np.isfinite(vector).all():
                output.pooled[name] = vector.tobytes()
            else:
                output.errors[name] = "the pooled hidden states hold NaN or infinity"
        self._states.pooled |= unfinished
        return output

    def _with_earlier(
        self, step: SchedulerOutput, slots: Column, inputs: StepInputs, done: Column
    ) -> tuple[Array, dict[int, Vector]]:
        """Return the vectors of the prompts that end here, [done, hidden], and the intermediate
        results of the others by slot."""
        first = self._config.pooling_type == "CLS"
        begins = step.num_computed_tokens == 0
        starts = inputs.metadata.query_start_loc.astype(np.int64)
        rows = starts[:-1][begins] if first else np.arange(len(inputs.input_ids))
        hidden = self._ops.numpy(self._model.forward(inputs, self._ops.array(rows)))
        wide = hidden.astype(np.float64)
        if first:
            found = np.zeros((len(slots), wide.shape[1]))
            found[begins] = wide
            for entry in np.flatnonzero(~begins).tolist():
                found[entry] = self._states.pooled[int(slots[entry])]
        else:
            found = np.array(
                [
                    self._sum(wide[starts[entry] : starts[entry + 1]], int(slots[entry]), new=new)
                    for entry, new in enumerate(begins.tolist())
                ]
            )
        vectors = found[done]
        if not first:
            vectors /= self._states.num_tokens[slots[done]][:, None]
        # A classifier computes in the model's dtype; an embedding is not rounded to it.
        dtype = hidden.dtype if self._config.task == "classify" else FLOAT32
        others = np.setdiff1d(np.arange(len(slots)), done).tolist()
        pooled = converted(converted(vectors, FLOAT32), dtype)
        return self._ops.array(pooled), {int(slots[i]): found[i] for i in others}

    def _sum(self, rows: Vector, slot: int, *, new: bool) -> Vector:
        """Return the sum of a sequence's rows [n, hidden] and of those before them, in order."""
        if not new:
            rows = np.concatenate([self._states.pooled[slot][None], rows])
        total: Vector = np.add.reduce(rows, axis=0)
        return total
