"""Messages between an executor and the workers of its other ranks, as msgpack.

executor → worker   Start, Agreed, then Prepare, Step and Call
worker → executor   Fit, Loaded, then an Outcome for each Step and an Answer for each Call; or
                    Failed, which is the last message
"""

from __future__ import annotations

from array import array
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from quire.core.batch import BlockCopies, Column, ModelOutput, NewSequence, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.lora import LoRARequest
from quire.core.options import RequestOptions
from quire.core.sampling_params import SamplingParams


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


class Prepare(msgspec.Struct, tag=True, array_like=True):
    """See `Executor.prepare`."""

    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    lora_request: LoRARequest | None


class Call(msgspec.Struct, tag=True, array_like=True):
    """See `Worker.call`; it runs between two steps."""

    method: str
    args: list[Any]


class Sequence(msgspec.Struct, array_like=True):
    """A `NewSequence`; its tokens as int32."""

    request_id: str
    token_ids: bytes
    num_prompt_tokens: int
    sampling_params: SamplingParams
    options: RequestOptions
    eos_token_ids: tuple[int, ...]
    second_text: int
    prompt_embeds: bytes | None


class Step(msgspec.Struct, tag=True, array_like=True):
    """A `SchedulerOutput`; its columns as int64.

    Attributes:
        number: counts the executor's steps, from 1.
        request_ids: None if they equal those of the previous step.
    """

    number: int
    step: int
    batch_version: int
    request_ids: list[str] | None
    num_scheduled_tokens: bytes
    num_computed_tokens: bytes
    new_blocks: bytes
    new_sequences: list[Sequence]
    removed: list[str]
    total_num_scheduled_tokens: int
    block_copies: BlockCopies | None
    max_new_tokens: bytes | None
    num_passes: int

    @classmethod
    def of(cls, number: int, batch: SchedulerOutput, *, same_requests: bool) -> Step:
        return cls(
            number,
            batch.step,
            batch.batch_version,
            None if same_requests else batch.request_ids,
            batch.num_scheduled_tokens.tobytes(),
            batch.num_computed_tokens.tobytes(),
            batch.new_blocks.tobytes(),
            [_sequence(new) for new in batch.new_sequences],
            batch.removed,
            batch.total_num_scheduled_tokens,
            batch.block_copies,
            None if batch.max_new_tokens is None else batch.max_new_tokens.tobytes(),
            batch.num_passes,
        )

    def batch(self, request_ids: list[str]) -> SchedulerOutput:
        """Return the step with these requests."""
        return SchedulerOutput(
            self.step,
            request_ids,
            column(self.num_scheduled_tokens),
            column(self.num_computed_tokens),
            column(self.new_blocks).reshape(3, -1),
            [_new_sequence(new) for new in self.new_sequences],
            self.removed,
            self.total_num_scheduled_tokens,
            self.block_copies,
            None if self.max_new_tokens is None else column(self.max_new_tokens),
            self.batch_version,
            self.num_passes,
        )


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


def _sequence(new: NewSequence) -> Sequence:
    return Sequence(
        new.request_id,
        np.asarray(new.token_ids, dtype=np.int32).tobytes(),
        new.num_prompt_tokens,
        new.sampling_params,
        new.options,
        new.eos_token_ids,
        new.second_text,
        new.prompt_embeds,
    )


def _new_sequence(new: Sequence) -> NewSequence:
    return NewSequence(
        new.request_id,
        array("i", new.token_ids),
        new.num_prompt_tokens,
        new.sampling_params,
        new.options,
        new.eos_token_ids,
        new.second_text,
        new.prompt_embeds,
    )
