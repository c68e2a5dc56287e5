"""What the scheduler asks of the executor for one step, and what comes back."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.core.messages import TokenLogprobs
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.sampling_params import SamplingParams

Column = NDArray[np.int64]
BlockRun = tuple[int, int, Sequence[int]]
"""Of an entry: from this position of its block table on, these blocks."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence the runner does not hold: new, or resumed after a preemption.

    Attributes:
        token_ids: all tokens known so far (prompt, then output if it was preempted).
        num_prompt_tokens: how many of them are the prompt; penalties tell them apart.
        second_text: where the second text of a pair begins; 0 is none.
        prompt_embeds: float32 [num_prompt_tokens, hidden], in place of the prompt's tokens.
    """

    request_id: str
    token_ids: array[int] | list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    options: RequestOptions = NO_OPTIONS
    eos_token_ids: tuple[int, ...] = ()
    second_text: int = 0
    prompt_embeds: bytes | None = None


ON_DISK = -1
"""Instead of a slot: the file of the key."""


class BlockStore(NamedTuple):
    """Copy a KV block into a slot of host memory, under a key that a load must name."""

    block: int
    slot: int
    key: bytes


class BlockLoad(NamedTuple):
    """Copy what was stored under a key into a KV block, from a slot or `ON_DISK`."""

    slot: int
    block: int
    key: bytes


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Copies between the KV cache, host memory and files, in this order, before the step computes.

    Attributes:
        dropped: keys whose files are not needed any more.
        spills: (slot, key): write a slot, stored under this key, to the key's file.
        stores, loads: out of the KV cache, and into it.
    """

    dropped: list[bytes]
    spills: list[tuple[int, bytes]]
    stores: list[BlockStore]
    loads: list[BlockLoad]

    @property
    def empty(self) -> bool:
        return not (self.loads or self.stores or self.spills or self.dropped)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step as parallel columns, one entry per sequence.

    The runner first drops `removed`, then adds `new_sequences`, then writes `new_blocks` into
    the block tables, and computes tokens [num_computed_tokens[i], + num_scheduled_tokens[i]) of
    entry i. An entry whose last token is among them yields up to `max_new_tokens[i]` tokens.

    A step may be scheduled before the steps ahead of it are computed. Then `num_computed_tokens`
    assumes that they yield all tokens that they may. The runner knows how many they yielded, and
    begins there.

    Attributes:
        num_scheduled_tokens, num_computed_tokens: int64 [B].
        new_blocks: int64 [3, K]: entry, position in its block table, block. A new sequence
            brings all its blocks.
        removed: finished, aborted or preempted since the last step.
        total_num_scheduled_tokens: of all entries, with the new tokens that are computed as well.
        block_copies: to be done before anything is computed; None for nothing.
        max_new_tokens: int64 [B], and the blocks hold all of them but the last; None is one each.
        batch_version: two steps in a row with the same one have the same `request_ids`, so that
            what was looked up for them stays valid. 0 equals nothing, not even itself.
    """

    step: int
    request_ids: list[str]
    num_scheduled_tokens: Column
    num_computed_tokens: Column
    new_blocks: Column
    new_sequences: list[NewSequence]
    removed: list[str]
    total_num_scheduled_tokens: int
    block_copies: BlockCopies | None = None
    max_new_tokens: Column | None = None
    batch_version: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is computed; `removed` may still have something to tell."""
        return not self.request_ids

    @property
    def width(self) -> int:
        """The most tokens that any entry may yield, at least 1."""
        return 1 if self.max_new_tokens is None else int(self.max_new_tokens.max(initial=1))


class StepTimes(NamedTuple):
    """Seconds that a step took the runner; see `CoreTimes`."""

    prepare: float = 0.0
    model: float = 0.0
    sample: float = 0.0


@dataclass(slots=True)
class ModelOutput:
    """What one step computed, in the order of `SchedulerOutput.request_ids`.

    Attributes:
        sampled_token_ids: int64 [B, W], new tokens of each entry from the left, then -1: none
            of a prompt that is not finished yet, or of a row that failed.
        logprobs: per request id, one `TokenLogprobs` a sampled token, where asked for.
        prompt_logprobs: per request id, one `TokenLogprobs` for each prompt token computed this
            step that predicts a following prompt token, where asked for.
        pooled: per request id, float32 bytes: what a pooling model makes of a prompt all of which
            is computed now.
        errors: per request id, why its row could not be sampled (a NaN logit, say); such
            an entry has no sampled tokens and the request ends with `FinishReason.ERROR`.
        times: where the step's time went.
        num_passes: how often the model ran.
        copy_seconds: what `block_copies` took; 0 is not known.
        failed_loads: KV blocks that what `block_copies` asked for could not be loaded into.
    """

    sampled_token_ids: Column
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    times: StepTimes = field(default_factory=StepTimes)
    num_passes: int = 1
    copy_seconds: float = 0.0
    failed_loads: list[int] = field(default_factory=list)


def total_tokens(scheduled: Column, max_new_tokens: Column | None) -> int:
    """`SchedulerOutput.total_num_scheduled_tokens`."""
    more = 0 if max_new_tokens is None else int(np.maximum(max_new_tokens - 1, 0).sum())
    return int(scheduled.sum()) + more


def block_columns(runs: Sequence[BlockRun]) -> Column:
    """`SchedulerOutput.new_blocks`."""
    entries: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    for entry, at, run in runs:
        entries += [entry] * len(run)
        positions += range(at, at + len(run))
        blocks += run
    flat = entries + positions + blocks
    packed = bytearray(struct.pack(f"{len(flat)}q", *flat))  # faster than np.array
    return np.frombuffer(packed, dtype=np.int64).reshape(3, -1)


def token_columns(rows: Sequence[Sequence[int]]) -> Column:
    """`ModelOutput.sampled_token_ids` from each entry's new tokens."""
    width = max(1, *map(len, rows)) if rows else 1
    padded = [[*row, *[-1] * (width - len(row))] for row in rows]
    return np.array(padded, dtype=np.int64).reshape(len(rows), width)
