"""Requests by what they ask for, and the latest ones by their lengths, to replay a load."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from quire.core.options import RequestOptions
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.metrics.repeats import Repeats


class RequestMix(msgspec.Struct):
    """Counts since the start, or of a window.

    Attributes:
        requests, sequences: arrived; a request has n sequences.
        logprobs, top_logprobs: requests with log-probabilities, and the alternatives that they ask
            for, summed.
        prompt_logprobs: requests with log-probabilities of the prompt.
        penalties: requests with a penalty.
        edits: requests that change or exclude single tokens: logit_bias, bad_words, allowed tokens.
        structures: requests with structured output.
        stops: requests with stop strings or stop tokens.
        adapters: requests with an adapter.
        salted_tokens, shifted_tokens: see `metrics.repeats.Repeats`.
    """

    requests: int = 0
    sequences: int = 0
    logprobs: int = 0
    top_logprobs: int = 0
    prompt_logprobs: int = 0
    penalties: int = 0
    edits: int = 0
    structures: int = 0
    stops: int = 0
    adapters: int = 0
    salted_tokens: int = 0
    shifted_tokens: int = 0

    def add(
        self, params: SamplingParams | PoolingParams, options: RequestOptions, repeats: Repeats
    ) -> None:
        self.requests += 1
        self.salted_tokens += repeats.salted
        self.shifted_tokens += repeats.shifted
        self.adapters += options.lora_request is not None
        if isinstance(params, PoolingParams):
            self.sequences += 1
            return
        self.sequences += params.n
        self.logprobs += params.logprobs is not None
        self.top_logprobs += params.logprobs or 0
        self.prompt_logprobs += params.prompt_logprobs is not None
        self.penalties += bool(
            params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        )
        self.edits += bool(params.logit_bias or params.bad_words or params.allowed_token_ids)
        self.structures += params.structured_outputs is not None
        self.stops += bool(params.stop or params.stop_token_ids)

    def join(self, other: RequestMix) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def since(self, first: RequestMix) -> RequestMix:
        return RequestMix(
            *(getattr(self, name) - getattr(first, name) for name in self.__struct_fields__)
        )

    def share(self, kind: str) -> float:
        """Return the share of the requests that a field counts."""
        return min(1.0, getattr(self, kind) / self.requests) if self.requests else 0.0


MOST_RECORDED = 256


class RecordedRequest(msgspec.Struct):
    """A request's arrival and lengths, without its text.

    Attributes:
        arrived: seconds on the monotonic clock; in a window, since the window's start.
        shared_tokens: leading tokens that an earlier prompt had, too.
        sequences: n.
        output_tokens: tokens of each sequence; their limit while they run, 0 without a limit.
    """

    arrived: float
    prompt_tokens: int
    shared_tokens: int = 0
    sequences: int = 1
    output_tokens: int = 0


class Arrival(NamedTuple):
    """A request in flight: its lengths, and what it asks for."""

    record: RecordedRequest
    asks: RequestMix


Recorded = deque[RecordedRequest]


def recorded() -> Recorded:
    """Return an empty record of the latest `MOST_RECORDED` requests."""
    return deque(maxlen=MOST_RECORDED)


def since(requests: Recorded, begin: float) -> list[RecordedRequest]:
    """Return the requests with times relative to `begin`; earlier ones have negative times."""
    return [msgspec.structs.replace(r, arrived=r.arrived - begin) for r in requests]
