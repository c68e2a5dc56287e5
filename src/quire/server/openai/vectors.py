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
    encode = _encoding(encoding)
    data: list[T] = []
    size = 0
    for index, vector in enumerate(vectors):
        data.append(as_json(kind(index, encode(vector))))
        size += len(vector)
        if size > NUMBERS_PER_TURN:
            size = 0
            yield
    return data


def _encoding(wanted: str | None) -> Callable[[Floats], list[float] | list[int] | str]:
    if wanted == "base64":
        return lambda vector: base64.b64encode(vector.astype("<f4").tobytes()).decode()
    if wanted in ("binary", "ubinary"):
        import numpy as np

        least = 128 if wanted == "binary" else 0
        return lambda vector: [byte - least for byte in np.packbits(vector > 0).tobytes()]
    return lambda vector: cast(list[float], vector.tolist())
