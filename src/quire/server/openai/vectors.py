"""The vectors of an answer: finished and encoded in turns, because there may be thousands."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from quire.core.model_config import PoolingConfig
from quire.core.outputs import RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.server.openai.logprobs import as_json
from quire.server.turns import Turns

if TYPE_CHECKING:
    from quire.frontend.output.pooling_output import Floats

T = TypeVar("T")

VECTORS_PER_TURN = 64
NUMBERS_PER_TURN = 8192
"""They take about 1 ms."""


def finished(
    config: PoolingConfig, params: PoolingParams, outputs: Sequence[RequestOutput]
) -> Turns[list[Floats]]:
    """Return the vectors that clients get."""
    from quire.frontend.output.pooling_output import finish

    vectors = []
    for index, output in enumerate(outputs, 1):
        vectors.append(finish(config, params, output.pooled or b""))
        if index % VECTORS_PER_TURN == 0:
            yield
    return vectors


def written(
    kind: Callable[[int, Any], T], vectors: Sequence[Floats], encoding: str | None
) -> Turns[list[T]]:
    """Return the vectors of an answer, encoded as JSON."""
    data: list[T] = []
    size = 0
    for index, vector in enumerate(vectors):
        data.append(as_json(kind(index, _encoded(vector, encoding))))
        size += len(vector)
        if size > NUMBERS_PER_TURN:
            size = 0
            yield
    return data


def _encoded(vector: Floats, encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return cast(list[float], vector.tolist())
