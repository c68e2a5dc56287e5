"""A step: the scheduler's output to the executor, and the model's output."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.images import ImageSpan
from quire.core.messages import TokenLogprobs
from quire.core.options import NO_INPUTS, RequestInputs
from quire.core.sampling_params import SamplingParams
from quire.system.records import dataclass

Column = NDArray[np.int64]
BlockRun = tuple[int, int, Sequence[int]]
"""Entry, position in its block table, and the blocks from there on."""


NO_STATE = -1
"""Instead of a state slot: the zero state, or no snapshot."""


class FirstState(NamedTuple):
    """Where a sequence with recurrent layers begins: the slot of its state, or `NO_STATE`, and the
    slots that the runner may write in turn."""

    start: int
    working: list[int]


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that the runner does not have: new, or resumed after a preemption.

    Attributes:
        token_ids: all known tokens: the prompt, and the output after a preemption.
        num_prompt_tokens: how many of them are the prompt; penalties need to know.
        state: of recurrent layers; None if the model has none.
    """

    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    inputs: RequestInputs = NO_INPUTS
    state: FirstState | None = None


ON_DISK = -1
"""Instead of a slot: load from the key's file."""
AT_PEER = -2
"""Instead of a slot: load from the engine that computed the prompt."""


class BlockStore(NamedTuple):
    """Copy a KV block to a slot of host memory, under a key that its loads must name."""

    block: int
    slot: int
    key: bytes


class BlockLoad(NamedTuple):
    """Copy the data of a key to a KV block, from a slot, `ON_DISK` or `AT_PEER`.

    Attributes:
        block: for the scheduler, that of a state is `~slot`.
    """

    slot: int
    block: int
    key: bytes

    @property
    def from_memory(self) -> bool:
        """Return whether the step that begins the load ends it, too."""
        return self.slot >= 0

    @property
    def of_state(self) -> bool:
        return self.block < 0

    @property
    def target(self) -> int:
        """Return the KV block, or the slot of the state."""
        return max(self.block, ~self.block)


class BlockSave(NamedTuple):
    """Write a KV block to its key's file, in the background."""

    block: int
    key: bytes


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Copies between the KV cache, host memory and files, in this order, before the step computes.

    Attributes:
        dropped: keys whose files may hold wrong values.
        saves: copies out of the KV cache to files.
        stores: copies out of the KV cache to slots.
        loads: copies into it. Those from slots are done in the step. The others begin in it, and
            end in it or a later one (`ModelOutput.pending_loads`).
        states: the same of states: their "blocks" are state slots.
        cancelled: blocks whose loads have not ended and must not be written any more; comes first.
    """

    dropped: list[bytes]
    saves: list[BlockSave]
    stores: list[BlockStore]
    loads: list[BlockLoad]
    states: BlockCopies | None = None
    cancelled: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.loads or self.stores or self.saves or self.dropped or self.cancelled)


class ReadAhead(msgspec.Struct, frozen=True, array_like=True):
    """An image to read a part of beside a step, because its rows are needed soon.

    Attributes:
        image: without `pixels` if earlier steps have begun it.
        seconds: about how long to read. The work is cut into pieces; a step reads at least one.
        request_id: of the sequence that needs it next.
    """

    image: ImageSpan
    seconds: float
    request_id: str = ""


class SchedulerOutput(msgspec.Struct, frozen=True):
    """One step as parallel columns, one entry per sequence.

    The runner first removes `removed`, then adds `new_sequences`, then writes `new_blocks` to the
    block tables. It computes tokens [num_computed_tokens[i], + num_scheduled_tokens[i]) of entry i.
    An entry whose last token is among them yields up to `max_new_tokens[i]` tokens.

    A step may be scheduled before earlier steps are computed. Then `num_computed_tokens` assumes
    that those yield all tokens that they may. The runner knows how many they yielded, and begins
    there.

    Attributes:
        num_scheduled_tokens, num_computed_tokens: int64 [B].
        new_blocks: int64 [3, K]: entry, position in its block table, block. A new sequence
            brings all its blocks. With recurrent layers [4, K]: also the state slot for the
            snapshot after the block, or `NO_STATE`.
        removed: finished, aborted or preempted since the last step.
        total_num_scheduled_tokens: of all entries, including new tokens that are computed, too.
        block_copies: to do before the step computes; None if there are none.
        max_new_tokens: int64 [B]; the blocks hold all of them but the last. None means one each.
        num_passes: how often the model may run for them.
        read_ahead: an image to read a part of; None if there is none.
        moves: blocks, and the blocks to copy them to before the step computes.
        batch_version: two steps in a row with equal versions have the same `request_ids`, so cached
            lookups stay valid. 0 is equal to no version, not even to 0.
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
    num_passes: int = 1
    read_ahead: ReadAhead | None = None
    moves: list[tuple[int, int]] = []

    @property
    def empty(self) -> bool:
        """Return whether the step computes nothing; `removed` may still have entries."""
        return not self.request_ids

    @property
    def width(self) -> int:
        """Return the most tokens that any entry may yield, at least 1."""
        return 1 if self.max_new_tokens is None else int(self.max_new_tokens.max(initial=1))


class StepTimes(NamedTuple):
    """The runner's seconds of a step; see `CoreTimes`."""

    prepare: float = 0.0
    model: float = 0.0
    sample: float = 0.0


class Hops(NamedTuple):
    """Steps whose rows went to another machine.

    Attributes:
        seconds: from sending until the receipt has come: the rows' way, and a short message's back.
        nbytes: of the rows.
        steps: how many they were.
    """

    seconds: float = 0.0
    nbytes: int = 0
    steps: int = 0


class ModelOutput(msgspec.Struct):
    """The result of one step, in the order of `SchedulerOutput.request_ids`.

    Attributes:
        sampled_token_ids: int64 [B, W], each entry's new tokens from the left, padded with -1. An
            unfinished prompt and a failed row have none.
        logprobs: per request id, one `TokenLogprobs` per sampled token, if requested.
        prompt_logprobs: per request id, one `TokenLogprobs` for each computed prompt token that
            predicts another prompt token, if requested.
        pooled: per request id, a pooling model's float32 bytes, once the whole prompt is
            computed.
        errors: per request id, why its row could not be sampled (a NaN logit, for example). The
            row has no sampled tokens, and the request ends with `FinishReason.ERROR`.
        times: the parts of the step's time.
        num_passes: how often the model ran.
        copy_seconds: time of `block_copies`; 0 means unknown.
        failed_loads: KV blocks whose loads failed, and `~slot` of states.
        pending_loads: those whose loads had not ended when the step began to compute.
        reads: how many blocks' worth was read from files in the background, and its seconds.
        unsaved: blocks and states that could not be written to files, since the start; 0 if the
            step copied nothing.
        drafted, accepted: int64 [passes, B], the verified drafts of each entry, and how many of
            them were right; None if the step had none.
        draft_seconds: time of drafting, a part of `times`.
        drafts: int64 [B, k], of the last stage for each entry's next step, then -1; None: none.
        encoded_tokens: prompt tokens whose images the tower has read in this step.
        encoded_images: the digests of these images.
        encode_seconds: what the tower took; not part of `times`.
        read_ahead: digest of the image of `SchedulerOutput.read_ahead`, if it is read.
        hops: steps of this stage that have come to the next one's machine since the last output.
    """

    sampled_token_ids: Column
    logprobs: dict[str, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    pooled: dict[str, bytes] = {}
    errors: dict[str, str] = {}
    times: StepTimes = StepTimes()
    num_passes: int = 1
    copy_seconds: float = 0.0
    failed_loads: list[int] = []
    pending_loads: list[int] = []
    reads: tuple[float, float] = (0.0, 0.0)
    unsaved: int = 0
    drafted: Column | None = None
    accepted: Column | None = None
    draft_seconds: float = 0.0
    drafts: Column | None = None
    encoded_tokens: int = 0
    encoded_images: list[bytes] = []
    encode_seconds: float = 0.0
    read_ahead: bytes | None = None
    hops: Hops = Hops()

    def num_sampled(self) -> Column:
        """Return each entry's number of new tokens, int64 [B]."""
        came = self.sampled_token_ids >= 0
        number: Column = came.sum(axis=1) if came.shape[1] > 1 else came[:, 0].astype(np.int64)
        return number

    def computed(self, step: SchedulerOutput) -> Column:
        """Return the tokens that the first pass of `step` computed, with its drafts, int64 [B]."""
        scheduled = step.num_scheduled_tokens
        return scheduled if self.drafted is None else scheduled + self.drafted[0]


def total_tokens(scheduled: Column, max_new_tokens: Column | None) -> int:
    """Return `SchedulerOutput.total_num_scheduled_tokens`."""
    more = 0 if max_new_tokens is None else int(np.maximum(max_new_tokens - 1, 0).sum())
    return int(scheduled.sum()) + more


def block_columns(runs: Sequence[BlockRun]) -> Column:
    """Return `SchedulerOutput.new_blocks`."""
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


def without_snapshots(columns: Column) -> Column:
    """Return `SchedulerOutput.new_blocks` of a model with recurrent layers, without snapshots."""
    return np.concatenate([columns, np.full((1, columns.shape[1]), NO_STATE)])


def token_columns(rows: Sequence[Sequence[int]]) -> Column:
    """Return `ModelOutput.sampled_token_ids` from each entry's new tokens."""
    width = max(1, *map(len, rows)) if rows else 1
    padded = [[*row, *[-1] * (width - len(row))] for row in rows]
    return np.array(padded, dtype=np.int64).reshape(len(rows), width)
