"""Messages between an executor and the workers of its other ranks, as msgpack.

executor → worker   Start, Agreed, then Prepare, Step and Call
worker → executor   Fit, Loaded, then an Outcome for each Step and an Answer for each Call; or
                    Failed, which is the last message
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.executor.base import Prepare


class Start(msgspec.Struct, tag=True, array_like=True):
    """Load the share of the model that `config` defines, on these CPUs (empty: on any)."""

    config: EngineConfig
    cpus: list[int]


class Fit(msgspec.Struct, tag=True, array_like=True):
    """Number of KV blocks that fit on this rank."""

    num_blocks: int


class Agreed(msgspec.Struct, tag=True, array_like=True):
    """Number of KV blocks that fit on every rank."""

    num_blocks: int


class Loaded(msgspec.Struct, tag=True, array_like=True):
    """The worker can compute steps."""


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The worker cannot start: code of a `QuireError` or name of an exception, and its message."""

    code: str
    message: str


class Call(msgspec.Struct, tag=True, array_like=True):
    """See `Worker.call`; it runs between two steps."""

    method: str
    args: list[Any]


class Step(msgspec.Struct, tag=True, array_like=True):
    """Compute a step.

    Attributes:
        number: counts the executor's steps, from 1.
        batch: without `request_ids` if they equal those of the previous step.
        same_requests: whether they do.
    """

    number: int
    batch: SchedulerOutput
    same_requests: bool


class Outcome(msgspec.Struct, tag=True, array_like=True):
    """The result of a step on one rank.

    Attributes:
        tokens: `ModelOutput.sampled_token_ids`, int64.
        pooled: a checksum of `ModelOutput.pooled`.
        failed_loads: see `ModelOutput`.
        error: the exception of the step, as text.
    """

    tokens: bytes = b""
    pooled: int = 0
    failed_loads: list[int] = []
    error: str | None = None

    @classmethod
    def of(cls, output: ModelOutput) -> Outcome:
        tokens = output.sampled_token_ids.tobytes()
        return cls(tokens, pooled_sum(output), output.failed_loads)


class Answer(msgspec.Struct, tag=True, array_like=True):
    """The result of a call."""

    value: Any


ToWorker = Start | Agreed | Prepare | Step | Call
FromWorker = Fit | Loaded | Failed | Outcome | Answer


def pooled_sum(output: ModelOutput) -> int:
    """Return a checksum of a step's pooled vectors."""
    total = 0
    for numbers in output.pooled.values():
        total = crc32(numbers, total)
    return total


def column(packed: bytes) -> Column:
    """Return a copy of the int64 numbers."""
    return np.frombuffer(bytearray(packed), dtype=np.int64)


def encode(message: ToWorker | FromWorker) -> bytes:
    """Return a message as a frame."""
    return msgspec.msgpack.encode(message, enc_hook=_plain)


def decoder(messages: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of `ToWorker` or `FromWorker`."""
    return msgspec.msgpack.Decoder(messages, dec_hook=_restored)


def _plain(value: Any) -> Any:
    """Return a step's array in plain types: columns are int64 arrays, tokens an `array`."""
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value.tolist()


def _restored(kind: type, plain: Any) -> Column:
    shape, packed = plain
    return column(packed).reshape(shape)
