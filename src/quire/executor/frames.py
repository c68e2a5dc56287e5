"""Messages between an executor and the workers in other processes, as msgpack.

executor → worker   Start, Fit, then Prepare, Step and Call
worker → executor   Fit, Loaded, then an Outcome for each Step and an Answer for each Call; or
                    Failed, which is the last message
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from quire.core.batch import Column, Hops, ModelOutput, SchedulerOutput, StepTimes
from quire.core.config import EngineConfig
from quire.executor.base import ForwardError, Prepare, StepSkippedError, error_text


class Start(msgspec.Struct, tag=True, array_like=True):
    """Load the share of the model that `config` defines."""

    config: EngineConfig


class Fit(msgspec.Struct, tag=True, array_like=True):
    """Numbers of KV blocks and of state slots that fit on a worker; the reply: on every worker."""

    num_blocks: int
    num_states: int


class Loaded(msgspec.Struct, tag=True, array_like=True):
    """The worker can compute steps; `sizes` are those of its facts that add up."""

    sizes: dict[str, int]


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The worker cannot start: code of a `QuireError` or name of an exception, and its message."""

    code: str
    message: str


class Call(msgspec.Struct, tag=True, array_like=True):
    """See `Worker.call`; it runs between two steps."""

    method: str
    args: list[Any]


class Landed(NamedTuple):
    """A step's `ModelOutput.sampled_token_ids` and `ModelOutput.drafts`."""

    tokens: Column
    drafts: Column | None = None


class Step(msgspec.Struct, tag=True, array_like=True):
    """Compute a step.

    Attributes:
        number: counts the executor's steps, from 1.
        batch: without `request_ids` if they equal those of the previous step.
        same_requests: whether they do.
        landed: steps that have landed since the last message, in order, for the stages that did not
            sample their tokens.
        again: a step has failed. Forget it and all behind it, and compute on.
    """

    number: int
    batch: SchedulerOutput
    same_requests: bool = False
    landed: list[Landed] = []
    again: bool = False


class Outcome(msgspec.Struct, tag=True, array_like=True):
    """The result of a step on one worker.

    Attributes:
        tokens: `ModelOutput.sampled_token_ids`, int64.
        pooled: a checksum of `ModelOutput.pooled`.
        failed_loads, pending_loads: see `ModelOutput`.
        times, hops: see `ModelOutput`.
        output: the whole result, from the first rank of a last stage in another process.
        error: the exception of the step, as text.
        in_forward: it is a `ForwardError`.
        skipped: the step was not started, because one ahead of it failed.
    """

    tokens: bytes = b""
    pooled: int = 0
    failed_loads: list[int] = []
    times: StepTimes = StepTimes()
    output: ModelOutput | None = None
    error: str | None = None
    in_forward: bool = False
    skipped: bool = False
    pending_loads: list[int] = []
    hops: Hops = Hops()

    @classmethod
    def of(cls, output: ModelOutput, *, whole: bool = False) -> Outcome:
        """Return the outcome of a step; `whole`: with all of its result."""
        tokens = output.sampled_token_ids.tobytes()
        given = output if whole else None
        pending = output.pending_loads
        return cls(
            tokens, pooled_sum(output), output.failed_loads, output.times, given,
            pending_loads=pending, hops=output.hops,
        )  # fmt: skip

    @classmethod
    def failed(cls, error: Exception) -> Outcome:
        """Return the outcome of a step that raised."""
        if isinstance(error, StepSkippedError):
            return cls(skipped=True)
        in_forward = isinstance(error, ForwardError)
        failed, pending = list[int](), list[int]()
        if isinstance(error, ForwardError):
            failed, pending = error.failed_loads, error.pending_loads
        return cls(
            failed_loads=failed,
            error=error_text(error),
            in_forward=in_forward,
            pending_loads=pending,
        )


class Answer(msgspec.Struct, tag=True, array_like=True):
    """The result of a call."""

    value: Any


ToWorker = Start | Fit | Prepare | Step | Call
FromWorker = Fit | Loaded | Failed | Outcome | Answer


def pooled_sum(output: ModelOutput) -> int:
    """Return a checksum of a step's pooled vectors."""
    total = 0
    for numbers in output.pooled.values():
        total = crc32(numbers, total)
    return total


def column(packed: bytes | memoryview) -> Column:
    """Return a copy of the int64 numbers."""
    return np.frombuffer(bytearray(packed), dtype=np.int64)


def encode(message: ToWorker | FromWorker) -> bytes:
    return msgspec.msgpack.encode(message, enc_hook=_plain)


def decoder(messages: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder of `ToWorker` or `FromWorker`."""
    return msgspec.msgpack.Decoder(messages, dec_hook=_restored)


def _plain(value: Any) -> Any:
    """Return a step's array in plain types: columns are int64 arrays, tokens an `array`."""
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value.tolist()


def _restored(kind: type, plain: Any) -> Column:
    shape, packed = plain
    try:
        return column(memoryview(packed)).reshape(shape)  # a number of bytes would be allocated
    except OverflowError as error:
        raise ValueError(f"an array of shape {shape}: {error}") from None
