"""Typed frames between the front end and the engine core; msgpack on the wire, never pickle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from quire.core.options import NO_INPUTS, KVTransfer, LentBlocks, RequestInputs
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

Message = TypeVar("Message")


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at one position.

    Entry 0 is the chosen token, or in a prompt the token at this position. The likeliest follow,
    best first, and may repeat it. `rank` is entry 0's, from 1. The last `num_named` entries were
    requested by id.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    num_named: int = 0


pack_logprobs = msgspec.msgpack.Encoder().encode
unpack_logprobs = msgspec.msgpack.Decoder(TokenLogprobs).decode


class AddRequest(msgspec.Struct, array_like=True, tag="add"):
    """Ask the core to run one sequence (n > 1 is n of these)."""

    request_id: str
    prompt_token_ids: bytes
    """Packed by `core.request.pack_tokens`."""
    sampling_params: SamplingParams
    arrival_time: float
    """Seconds on the monotonic clock, which all processes of a machine share."""
    inputs: RequestInputs = NO_INPUTS

    def handed(self, transfer: KVTransfer) -> AddRequest:
        """Return this request with another part in a hand-off."""
        options = replace(self.inputs.options, kv_transfer=transfer)
        return replace(self, inputs=replace(self.inputs, options=options))


class AbortRequests(msgspec.Struct, array_like=True, tag="abort"):
    """Drop these requests and free their blocks; ignore unknown ids."""

    request_ids: list[str]


class Call(msgspec.Struct, array_like=True, tag="call"):
    """Run one of the core's utility methods; answered by a `CallResult` with the same id."""

    call_id: int
    method: str
    args: list[Any] = []


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown"):
    """Stop the core after the step in flight.

    Attributes:
        is_final: whether none follows it, so that other machines end, too.
    """

    is_final: bool = True


class BlocksLent(msgspec.Struct, array_like=True, tag="lent"):
    """Blocks of this core that its predecessor lent; the core must not write to them."""

    blocks: list[int]


class BlocksReturned(msgspec.Struct, array_like=True, tag="returned"):
    """Blocks that this core or its predecessor lent, and nobody reads any more."""

    blocks: list[int]


CoreInput = AddRequest | AbortRequests | BlocksLent | BlocksReturned | Call | Shutdown


class CoreOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """One request's output of one step."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token that ended the request, or the error's text."""
    num_cached_tokens: int = 0
    scheduled_time: float = 0.0
    """When the request first left the queue, on the monotonic clock."""
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[bytes] | None = None
    """Each packed by `pack_logprobs`: the front end unpacks few at a time."""
    pooled: bytes | None = None
    """A pooling model's vector, float32."""
    num_draft_tokens: int = 0
    """Of the whole sequence, with its last output; so are the accepted ones."""
    num_accepted_tokens: int = 0
    kv_blocks: list[bytes] | None = None
    """The prompt's blocks, with the last output of a request that hands them over; only within the
    core."""
    kv_transfer_params: dict[str, Any] | None = None
    """The same for the client."""
    lent: LentBlocks | None = None
    """The same for another replica, if the replicas share memory."""


EventKind = Literal[
    "images", "load", "load_failed", "admitted", "encode", "prefill", "preempted", "retried"
]


class RequestEvent(msgspec.Struct, array_like=True, omit_defaults=True):
    """An event of a sequence, other than decoding. Times are on the monotonic clock.

    Kinds, and what `tokens` counts:

        images: its images were fetched and prepared, until `end`; the prompt's tokens that stand
            for them (the front end's own event).
        load: its blocks are being loaded from host memory; their tokens.
        load_failed: the load failed, and it waits again.
        admitted: it has a row and blocks; tokens found in the cache.
        encode: the tower read images of its prompt, until `end`; the tokens that stand for these.
        prefill: a step computed a part of its prompt (after a preemption, of all its tokens);
            the tokens of this part. `end` is the end of the step.
        preempted: it lost its row and waits again; tokens that were computed.
        retried: its core was lost, and another one goes on (the front end's own event).
    """

    request_id: str
    kind: EventKind
    time: float
    tokens: int = 0
    end: float = 0.0


class HostTierStats(msgspec.Struct, array_like=True):
    """KV blocks outside of the KV cache. Counters are totals since the start."""

    num_requests_swapped: int
    """Preempted requests with stored blocks."""
    slots_used: int
    slots_total: int
    saved: int
    """Blocks that were written to files."""
    swap_preemptions: int
    """Preemptions that swapped blocks out; the other requests compute their tokens again."""
    swapped_out: int
    swapped_in: int
    stored: int
    """Blocks that were stored after their eviction from the prefix cache."""
    loaded: int
    """Stored blocks that were loaded for a request."""
    failed: int
    """Blocks that could not be loaded correctly and were computed again."""
    unsaved: int = 0
    """Blocks that could not be written to files."""


class SpecDecodingStats(msgspec.Struct, array_like=True):
    """Speculative decoding. Counters are totals since the start."""

    num_drafts: int
    """Passes of a sequence with drafts."""
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]
    draft_seconds: float = 0.0
    """Time that the proposer took."""


class StageStats(msgspec.Struct, array_like=True):
    """A pipeline stage. Counters are totals since the start; see `batch.Hops`."""

    busy: float = 0.0
    """Seconds of its steps, without waiting for rows."""
    hop_seconds: float = 0.0
    hop_bytes: int = 0
    hops: int = 0
    """Steps whose rows went to another machine."""


class SchedulerStats(msgspec.Struct, array_like=True):
    """The scheduler's state after a step. Counters are totals since the start."""

    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    """Prompt tokens found there."""
    num_preemptions: int
    num_steps: int
    step_tokens: int
    """Tokens computed in this step."""
    host_tier: HostTierStats | None = None
    """None if there is no host tier."""
    kv_blocks_cached: int = 0
    """Free blocks that still hold a known prefix."""
    spec_decoding: SpecDecodingStats | None = None
    """None without speculative decoding."""
    encoded_tokens: int = 0
    """Prompt tokens whose images the tower has read since the start."""
    num_loading: int = 0
    """Of `num_waiting`, requests whose KV blocks are being loaded."""
    stages: list[StageStats] = []
    """Empty for one stage."""


class CoreTimes(msgspec.Struct, array_like=True):
    """Seconds since the core's start, by activity.

    They add up to the core's wall time; to more if a step is prepared while another is computed.
    """

    receive: float = 0.0
    """Decoding frames and adding requests, including hashing."""
    schedule: float = 0.0
    prepare: float = 0.0
    """Making a step's inputs."""
    model: float = 0.0
    """The forward pass and the logits."""
    encode: float = 0.0
    """The tower reading images."""
    sample: float = 0.0
    update: float = 0.0
    """Applying a step's result: `Scheduler.update`."""
    send: float = 0.0
    """Encoding and sending outputs; with `LLM`, converting them to text."""
    idle: float = 0.0
    """Waiting for requests."""

    @property
    def own(self) -> float:
        """Return the seconds of the core's work outside the model."""
        parts = self.receive, self.schedule, self.prepare, self.sample, self.update, self.send
        return self.encode + sum(parts)


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """The core has loaded its model and waits for requests."""

    num_gpu_blocks: int
    block_size: int
    phases: dict[str, float]
    """Seconds spent in each part of the start, in order."""
    facts: dict[str, Any]
    """Facts about the machine and the model: device, dtype, isa, weight_bytes, kv_cache_bytes …"""
    began: float = 0.0
    """When the first of `phases` began, on the monotonic clock."""


class Standing(msgspec.Struct, array_like=True, tag="standing"):
    """The standby core has imported everything and waits for its configuration."""


class BlockChanges(msgspec.Struct, array_like=True):
    """Hashes of KV blocks that entered and left a prefix cache since the last report."""

    entered: list[bytes]
    left: list[bytes]
    emptied: bool = False
    """All blocks left before these entered."""


class StepOutputs(msgspec.Struct, array_like=True, tag="outputs"):
    """All outputs of one step.

    Most requests only have new tokens: they are in two flat columns. The first token, the last
    one, log-probabilities and errors come in a `CoreOutput`.
    """

    outputs: list[CoreOutput]
    stats: SchedulerStats | None
    timestamp: float
    times: CoreTimes | None = None
    request_ids: list[str] = []
    new_token_ids: list[int] = []
    """The tokens of `request_ids`, one request after the other."""
    events: list[RequestEvent] = []
    """Events since the last outputs, in order; mostly none."""
    num_new_tokens: list[int] = []
    """Number of new tokens of each of `request_ids`; one each if empty."""
    blocks: BlockChanges | None = None
    """Changes of the prefix cache, if a router asked for them and there are any."""
    returned: list[int] = []
    """Borrowed blocks that nobody reads here any more; one entry per loan of a block."""

    def each(self) -> Iterator[CoreOutput]:
        """Yield all requests' outputs, plain ones first."""
        tokens = iter(self.new_token_ids)
        counts = self.num_new_tokens or repeat(1)
        for request_id, count in zip(self.request_ids, counts, strict=False):
            yield CoreOutput(request_id, [*islice(tokens, count)])
        yield from self.outputs


class CallResult(msgspec.Struct, array_like=True, tag="result"):
    call_id: int
    value: Any = None
    error: str | None = None


class CoreFailed(msgspec.Struct, array_like=True, tag="failed"):
    """The core failed, or could not start. It is the last frame."""

    code: str
    """`QuireError.code` if the user can fix the cause, else the exception's class."""
    message: str


BAD_FRAME = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding a bad frame."""


class FrameDecoder(Generic[Message]):
    """Decodes frames; drops, logs and counts bad ones.

    Args:
        kind: `CoreInput` or `CoreMessage`.
    """

    def __init__(self, kind: Any) -> None:
        self.num_bad = 0
        self._decoder = msgspec.msgpack.Decoder(kind)

    def decode(self, frame: bytes | memoryview) -> Message | None:
        """Return the frame's message; None if the frame is bad."""
        try:
            message: Message = self._decoder.decode(frame)
        except BAD_FRAME as error:
            self.num_bad += 1
            logger.warning("dropped a bad frame (%d so far): %s", self.num_bad, error)
            return None
        return message


CoreMessage = Standing | Ready | StepOutputs | CallResult | CoreFailed
