"""Turns a pooling model's vector into the answer: an embedding, probabilities or a score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.model_config import PoolingConfig
from quire.core.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from quire.core.pooling_params import PoolingParams

Floats = NDArray[np.float32]


def finish(config: PoolingConfig, params: PoolingParams, pooled: bytes) -> Floats:
    """Return the requested vector from the core's raw one."""
    vector = np.frombuffer(pooled, dtype=np.float32).astype(np.float64)
    if config.task == "embed":
        vector = vector[: params.dimensions]
        if config.normalize if params.normalize is None else params.normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    elif params.use_activation is not False:
        vector = _activate(config.activation, vector)
    return vector.astype(np.float32)


def pooled_output(
    config: PoolingConfig, params: PoolingParams, output: RequestOutput
) -> PoolingRequestOutput[PoolingOutput]:
    """Return a request's answer from its one output.

    Raises:
        RuntimeError: the request failed; the message says why.
    """
    if output.pooled is None:
        completion = output.outputs[0]
        raise RuntimeError(f"request {output.request_id}: {completion.stop_reason or 'aborted'}")
    vector = PoolingOutput(finish(config, params, output.pooled))
    return PoolingRequestOutput(
        output.request_id, vector, output.prompt_token_ids, output.num_cached_tokens
    )


def _activate(activation: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    if activation == "sigmoid":
        small = np.exp(-np.abs(x))
        return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))
    if activation == "softmax":
        weights = np.exp(x - x.max())
        return np.asarray(weights / weights.sum())
    return x


def cosine(first: Floats, second: Floats) -> float:
    """Return the cosine of two embeddings, in [-1, 1]."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    found = float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-24))
    return min(max(found, -1.0), 1.0)  # rounding may exceed it
