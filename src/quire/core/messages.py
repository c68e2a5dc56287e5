"""Typed frames between the front end and the engine core; msgpack on the wire, never pickle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, Literal

import msgspec

from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.request import FinishReason
from quire.core.sampling_params import SamplingParams


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at one position.

    Entry 0 is the token that was chosen (or, in a prompt, the token that stands there);
    the likeliest follow, best first, and may repeat it. `rank` is entry 0's, from 1. The last
    `num_named` were asked for by their ids.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    num_named: int = 0


class AddRequest(msgspec.Struct, array_like=True, tag="add"):
    """Ask the core to run one sequence (n > 1 is n of these)."""

    request_id: str
    prompt_token_ids: bytes
    """`core.request.pack_tokens` of them."""
    sampling_params: SamplingParams
    arrival_time: float
    """Seconds on the monotonic clock, which all processes of a machine share."""
    options: RequestOptions = NO_OPTIONS
    eos_token_ids: tuple[int, ...] = ()
    second_text: int = 0
    """Where the second text of a pair begins, of models that tell them apart; 0 is none."""
    prompt_embeds: bytes | None = None
    """float32 [prompt tokens, hidden], in place of the prompt's tokens, which are `EMBEDDED`."""


class AbortRequests(msgspec.Struct, array_like=True, tag="abort"):
    """Drop these requests and free their blocks; unknown ids are ignored."""

    request_ids: list[str]


class Call(msgspec.Struct, array_like=True, tag="call"):
    """Run one of the core's utility methods; answered by a `CallResult` with the same id."""

    call_id: int
    method: str
    args: list[Any] = []


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown"):
    """Stop the core after the step in flight."""


CoreInput = AddRequest | AbortRequests | Call | Shutdown


class CoreOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """What one step gave one request."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token that ended it, or the error's text."""
    num_cached_tokens: int = 0
    scheduled_time: float = 0.0
    """When it first left the queue, on the monotonic clock."""
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    pooled: bytes | None = None
    """What a pooling model gives: float32."""


EventKind = Literal["load", "load_failed", "admitted", "prefill", "preempted", "retried"]


class RequestEvent(msgspec.Struct, array_like=True, omit_defaults=True):
    """Something that happened to a sequence beside decoding; moments are on the monotonic clock.

    Kinds, and what `tokens` counts:

        load: its blocks are on their way from host memory; what they hold.
        load_failed: they did not arrive, and it waits again.
        admitted: it has a seat and blocks; those that need not be computed.
        prefill: a step computed a part of its prompt (or of all it has, after a preemption);
            those of the part. `end` is when the step had been computed.
        preempted: it lost its seat and waits again; those that were computed.
        retried: its core was lost, and it begins again with another (the front end's own event).
    """

    request_id: str
    kind: EventKind
    time: float
    tokens: int = 0
    end: float = 0.0


class HostTierStats(msgspec.Struct, array_like=True):
    """KV blocks outside of the KV cache; counters are totals since start."""

    num_requests_swapped: int
    """Preempted requests whose blocks are kept."""
    slots_used: int
    slots_total: int
    files_used: int
    swap_preemptions: int
    """Of all preemptions; the others compute again."""
    swapped_out: int
    swapped_in: int
    stored: int
    """Blocks that the prefix cache gave up and that were kept."""
    loaded: int
    """Of the kept ones, those that a request got back."""
    failed: int
    """Blocks that could not be loaded as they had been stored; they were computed again."""


class SchedulerStats(msgspec.Struct, array_like=True):
    """The scheduler's state after a step; counters are totals since start."""

    num_running: int
    num_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    """Of those, the tokens found."""
    num_preemptions: int
    num_steps: int
    step_tokens: int
    """Tokens computed in this step."""
    host_tier: HostTierStats | None = None
    """None where there is none."""
    kv_blocks_cached: int = 0
    """Of those not in use, the ones that still hold a known prefix."""


class CoreTimes(msgspec.Struct, array_like=True):
    """Seconds since the core started, by what they went to.

    They add up to the core's wall time. Where a step is prepared or told of while another is
    computed, they overlap and add up to more.
    """

    receive: float = 0.0
    """Decoding frames and taking requests in, hashing included."""
    schedule: float = 0.0
    prepare: float = 0.0
    """Making a step's inputs."""
    model: float = 0.0
    """The forward pass and the logits."""
    sample: float = 0.0
    update: float = 0.0
    """Taking in what a step computed: `Scheduler.update`."""
    send: float = 0.0
    """Encoding and sending outputs; offline, making them into text."""
    idle: float = 0.0
    """Waiting for requests."""


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """The core has loaded its model and waits for requests."""

    num_gpu_blocks: int
    block_size: int
    phases: dict[str, float]
    """Seconds spent in each part of the start, in order."""
    facts: dict[str, Any]
    """What it runs on: device, dtype, isa, weight_bytes, kv_cache_bytes …"""
    began: float = 0.0
    """When the first of `phases` did, on the monotonic clock."""


class Standing(msgspec.Struct, array_like=True, tag="standing"):
    """The core's process was started ahead of its need; it has imported all, and stands by for
    its configuration."""


class StepOutputs(msgspec.Struct, array_like=True, tag="outputs"):
    """All outputs of one step.

    Requests of which there is nothing to say but their new tokens are two flat columns; all
    others (the first token, the last, log-probabilities, errors) have a `CoreOutput`.
    """

    outputs: list[CoreOutput]
    stats: SchedulerStats | None
    timestamp: float
    times: CoreTimes | None = None
    request_ids: list[str] = []
    new_token_ids: list[int] = []
    """Of each of `request_ids`, one request after the other."""
    events: list[RequestEvent] = []
    """What happened since the last outputs, in order; mostly nothing."""
    num_new_tokens: list[int] = []
    """How many each of `request_ids` has; empty: one."""

    def each(self) -> Iterator[CoreOutput]:
        """Every request's output, plain ones first."""
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
    """The core cannot go on (or could not start); the last frame it sends."""

    code: str
    """`QuireError.code` where the cause is the user's to fix, else the exception's class."""
    message: str


BAD_FRAME = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a frame may raise."""

CoreMessage = Standing | Ready | StepOutputs | CallResult | CoreFailed
