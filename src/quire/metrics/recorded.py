"""The latest requests by their lengths, so that a load can be replayed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from quire.metrics.request_mix import RequestMix

MOST_RECORDED = 256


class RecordedRequest(msgspec.Struct):
    """A request's arrival and lengths, without its text.

    Attributes:
        arrived: seconds on the monotonic clock; in a window, since the window's start.
        prompt_tokens: tokens of the prompt.
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
