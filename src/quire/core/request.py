"""A request in the scheduler: its tokens, its status and its place in the queue."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any, Protocol

from quire.core.options import NO_INPUTS, RequestInputs, RequestOptions
from quire.core.sampling_params import SamplingParams

EMBEDDED = -1
"""Placeholder for a prompt token that is given as an embedding."""


class RequestStatus(IntEnum):
    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3
    LOADING = 4
    """Admitted; its first blocks are being loaded from the host tier."""


class FinishReason(StrEnum):
    """Why a request ended; the strings are OpenAI's and vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"
    ABORT = "abort"
    ERROR = "error"


class PrefixDigest(Protocol):
    """A running hash, as in `hashlib`."""

    def update(self, data: bytes | memoryview, /) -> Any: ...

    def digest(self) -> bytes: ...


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Return four bytes per token, for messages: decoding a list would build an object per token.

    Raises:
        struct.error: a token is no 32-bit integer.
    """
    return struct.pack(f"{len(token_ids)}i", *token_ids)


class Request:
    """One sequence: prompt and output tokens in one array, and its state.

    There is no prefill or decode state. A request has `num_tokens` tokens, some of which have their
    keys and values in the cache. Each step computes some of the rest. The step that computes the
    last one yields a new token. `scheduler.running` counts a running request's computed tokens; a
    waiting one has none.
    """

    __slots__ = (
        "arrival_time",
        "block_hashes",
        "decodes_since",
        "drafts_right",
        "drafts_tested",
        "finish_reason",
        "first_scheduled_time",
        "inputs",
        "max_total_tokens",
        "num_accepted_tokens",
        "num_cached_tokens",
        "num_draft_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "order",
        "preempted_time",
        "prefix_digest",
        "prompt_logprobs",
        "request_id",
        "sampling_params",
        "status",
        "stop_ids",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: bytes | Sequence[int],
        sampling_params: SamplingParams,
        *,
        arrival_time: float,
        max_model_len: int,
        inputs: RequestInputs = NO_INPUTS,
    ) -> None:
        self.request_id = request_id
        packed = isinstance(prompt_token_ids, bytes)
        self.token_ids = array("i", prompt_token_ids if packed else pack_tokens(prompt_token_ids))
        self.num_prompt_tokens = len(self.token_ids)
        self.sampling_params = sampling_params
        self.arrival_time = arrival_time
        self.inputs = inputs
        self.stop_ids = _stop_ids(sampling_params, inputs.eos_token_ids)
        """Tokens that may end the request."""
        budget = sampling_params.max_tokens
        self.max_total_tokens = (
            max_model_len if budget is None else min(max_model_len, self.num_prompt_tokens + budget)
        )
        if (transfer := inputs.options.kv_transfer) is not None:
            if transfer.first_only:
                self.max_total_tokens = min(self.max_total_tokens, self.num_prompt_tokens + 1)
            self.token_ids.extend(transfer.sampled)
        self.order: tuple[int, ...] = ()
        """Order in the queue, lowest first: priority, round, arrival. The queue sets it once."""
        self.status = RequestStatus.WAITING
        self.num_cached_tokens = -1
        """Prompt tokens found in the prefix cache at the first admission; -1 before."""
        self.prompt_logprobs: list[bytes] = []
        """Those of the prompt tokens computed so far, until the first output token."""
        self.num_draft_tokens = self.num_accepted_tokens = 0
        """Drafts that were verified, and those that were right."""
        self.drafts_tested = self.drafts_right = 0
        """Recent drafts whose predecessors were right, and the right ones."""
        self.num_preemptions = 0
        self.first_scheduled_time = 0.0
        """When it first left the queue; 0 before."""
        self.preempted_time = 0.0
        """When it last returned to the queue; 0 before."""
        self.decodes_since: float | None = None
        """When it sampled its first token since its admission."""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.block_hashes: list[bytes] = []
        """Prefix hashes of the full blocks of `token_ids`, from the KV manager."""
        self.prefix_digest: PrefixDigest | None = None
        """Running hash of the tokens in these blocks."""

    @property
    def options(self) -> RequestOptions:
        """Return the client's options."""
        return self.inputs.options

    @property
    def lora_int_id(self) -> int:
        """Return the adapter's id; 0 if there is none."""
        adapter = self.options.lora_request
        return 0 if adapter is None else adapter.lora_int_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_promised(self) -> int:
        """Return how many KV blocks another engine has promised."""
        transfer = self.options.kv_transfer
        return 0 if transfer is None else len(transfer.promised)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_own_tokens(self) -> int:
        """Return the output tokens that this engine has sampled."""
        transfer = self.options.kv_transfer
        return self.num_output_tokens - (len(transfer.sampled) if transfer is not None else 0)

    @property
    def running(self) -> bool:
        return self.status is RequestStatus.RUNNING

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.status.name}, {self.num_tokens} tokens)"


def _stop_ids(params: SamplingParams, eos_token_ids: tuple[int, ...]) -> frozenset[int]:
    ends = () if params.ignore_eos else eos_token_ids
    return frozenset((*ends, *(params.stop_token_ids or ())))
