"""Read what a request wants of the scheduler: priority, replica, trace, hand-off of KV blocks."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.requests import Request

from quire.core.options import KVTransfer, RequestOptions
from quire.frontend.output.tracing import TRACE_HEADERS
from quire.server.errors import invalid
from quire.server.notices import ignore
from quire.server.state import MAX_NAME, server_state

HASH_BYTES = 32
"""Of a KV block's hash."""
RANK_HEADER = "X-data-parallel-rank"
"""Names the replica that computes a request, as with vLLM."""


class _HasOptions(Protocol):
    priority: int | None
    cache_salt: Any


def request_options(request: Request, body: _HasOptions) -> RequestOptions:
    """Return the client's options, from the body and the headers."""
    params = getattr(body, "kv_transfer_params", None)
    config = server_state(request).engine.resolved.config
    if body.priority and (policy := config.scheduler.policy) != "priority":
        why = f"It has no effect with --scheduling-policy {policy}; the policy priority has it."
        ignore(request, "priority", why)
    if params is not None and params.do_remote_prefill and config.transfer is None:
        why = "this server has no --kv-transfer-config, and computes the prompt itself"
        ignore(request, "kv_transfer_params", f"do_remote_prefill has no effect: {why}.")
    return RequestOptions(
        body.priority or 0,
        body.cache_salt,
        skip_reading_prefix_cache=getattr(body, "cache_prompt", None) is False,
        trace_headers=_trace_headers(request),
        data_parallel_rank=_replica(request),
        kv_transfer=_kv_transfer(body),
    )


def _kv_transfer(body: object) -> KVTransfer | None:
    """Return the request's part in a hand-off of KV blocks.

    Raises:
        ApiError: 400 for block ids that are no hashes, and for a stream that cannot report blocks.
    """
    given = getattr(body, "kv_transfer_params", None)
    if given is None:
        return None
    if given.do_remote_decode and getattr(body, "stream", None):
        raise invalid(
            "do_remote_decode needs stream to be false: only a whole answer reports its blocks.",
            "kv_transfer_params",
        )
    promised = given.remote_block_ids if given.do_remote_prefill else None
    try:
        blocks = tuple(bytes.fromhex(block) for block in promised or ())
    except (TypeError, ValueError):
        blocks = (b"",)
    if any(len(block) != HASH_BYTES for block in blocks):
        raise invalid(
            "remote_block_ids are not those of a producer's answer.", "kv_transfer_params"
        )
    return KVTransfer(given.do_remote_decode, blocks)


def _replica(request: Request) -> int | None:
    """Return the number of the replica that the client wants; raises `ApiError` if it is none."""
    text = request.headers.get(RANK_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < MAX_NAME):
        raise invalid(
            f"{RANK_HEADER} is {text[:MAX_NAME]!r}; it must be a whole number.", RANK_HEADER
        )
    return int(text)


def _trace_headers(request: Request) -> dict[str, str] | None:
    """Return the headers that make a request part of the client's trace."""
    if TRACE_HEADERS[0] not in request.headers:
        return None
    return {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
