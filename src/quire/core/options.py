"""What a request asks for besides its prompt and its sampling."""

from __future__ import annotations

import msgspec

from quire.core.lora import LoRARequest


class RequestOptions(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Options of one request. They travel whole: endpoint, message, scheduler, batch row.

    A new option is a field here, its use, and what a client calls it.
    """

    priority: int = 0
    """Lower runs first, under the priority policy."""
    cache_salt: str | None = None
    """Requests with different salts share no block of the prefix cache."""
    lora_request: LoRARequest | None = None
    """The adapter to compute with."""
    trace_headers: dict[str, str] | None = None
    """W3C Trace Context headers that make the request part of the client's trace."""
    arrival_time: float | None = None
    """On the monotonic clock; None is when the engine gets the request."""
    skip_reading_prefix_cache: bool = False
    """Compute the whole prompt, also if a prefix of it is known."""


NO_OPTIONS = RequestOptions()
