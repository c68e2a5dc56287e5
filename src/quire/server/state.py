"""Read-only state of all endpoints: the engine, the served names, the options."""

from __future__ import annotations

import math
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from quire.core.lora import LoRARequest
from quire.frontend.fingerprint import with_adapter
from quire.frontend.workers.pool import CLIENT
from quire.server.adapters import ServedAdapters
from quire.server.errors import ApiError, invalid
from quire.server.http.request_ids import choose_request_id
from quire.server.options import AppOptions
from quire.server.tools.table import Parsers
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

MAX_NAME = 200
"""Most characters of a name in an error."""
RETRY_SECONDS = (1, 60)
"""Shortest and longest `Retry-After`."""
FIRST_RETRY_SECONDS = 5
"""`Retry-After` before any request has finished."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """One served model.

    Attributes:
        model_names: names for clients; responses have the one that was asked for, or the first.
        created: when the server started, in seconds since the epoch.
        parsers: read reasoning and tool calls in the model's answers.
        adapters: adapters that are served as separate models.
        system_fingerprint: the model's; see `frontend.fingerprint`.
        tool_images: the model reads images in results of tools; see `tool_results.reads_images`.
    """

    engine: AsyncLLM
    model_names: tuple[str, ...]
    created: int
    options: AppOptions
    parsers: Parsers
    adapters: ServedAdapters
    system_fingerprint: str
    tool_images: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names that a request may use: the model's and the adapters'."""
        return (*self.model_names, *self.adapters.names)

    def lora_request(self, name: str) -> LoRARequest | None:
        """Return the adapter of a name from `served_name`; None for the model itself."""
        adapter = self.adapters.get(self.served_name(name))
        return adapter if name not in self.model_names else None

    def fingerprint(self, adapter: LoRARequest | None) -> str:
        """Return the `system_fingerprint` of the model, or of it with an adapter."""
        if adapter is None:
            return self.system_fingerprint
        return with_adapter(self.system_fingerprint, adapter.digest)

    def served_name(self, asked: str | None) -> str:
        """Return the name for the response; raises 404 for a model that is not served."""
        if not asked:  # an empty name is that of some clients' forms
            return self.model_names[0]
        if asked not in self.names:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"The model {asked[:MAX_NAME]!r} is not served here; {' or '.join(self.names)} is.",
                param="model",
                code="model_not_found",
            )
        return asked

    def live_engine(self) -> AsyncLLM:
        """Return the engine if it can accept a request; otherwise raise 503."""
        if self.engine.error is not None:
            raise self.engine.error
        if self.engine.draining:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The server is shutting down; send the request to another one.",
                code="shutting_down",
                headers={"Retry-After": "5", "Connection": "close"},
            )
        if not self.engine.is_ready:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The model is still loading; try again shortly.",
                code="not_ready",
                headers={"Retry-After": "1"},
            )
        return self.engine

    def check_queue(self) -> None:
        """Refuse a request with 429 while the queue is full, unless another client fills it.

        The client is asked to come back when half of the queue will have been served, at the
        rate of the latest requests.
        """
        queued = self.engine.num_queued
        most = self.options.max_queued_requests
        if queued < most or self._is_crowded_out():
            return
        stats = self.engine.stats
        stats.rejected += 1
        seconds = stats.seconds_to_finish(-(-queued // 2), time.monotonic())
        shortest, longest = RETRY_SECONDS
        if seconds is None:
            seconds = FIRST_RETRY_SECONDS
        wait = min(max(math.ceil(seconds), shortest), longest)
        raise ApiError(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"{queued} requests wait already, and the queue holds {most}; try again in {wait} s.",
            code="queue_full",
            headers={"Retry-After": str(wait)},
        )

    def _is_crowded_out(self) -> bool:
        """Return whether the queue has room without its largest client, and this one holds less
        than an equal share."""
        held, client, most = self.engine.by_client(), CLIENT.get(), self.options.max_queued_requests
        others = len(held.keys() - {client})
        has_room = others > 0 and held.total() - max(held.values()) < most
        return has_room and held[client] * (others + 1) < most


def server_state(request: Request) -> ServerState:
    """Return the state that `app.create_app` gave this application."""
    return cast(ServerState, request.app.state.server)


def request_id(request: Request, wanted: str | None = None) -> str:
    """Return the unique id from which the ids of responses are derived.

    It is the `X-Request-Id` of the response, unless a client has sent the same one before.

    Args:
        wanted: an id in the request's body; used if the client sent no `X-Request-Id`.

    Raises:
        ApiError: 400 if `wanted` is not a valid id.
    """
    state = request.scope["state"]
    if "unique_id" not in state:
        if wanted is not None and choose_request_id(wanted) != wanted:
            raise invalid(
                f"request_id is {wanted[:MAX_NAME]!r}; it must be 1 to 128 letters, digits, '.', "
                "'_', ':' or '-'.",
                "request_id",
            )
        if wanted is not None and "x-request-id" not in request.headers:
            state["request_id"] = wanted
        state["unique_id"] = state["request_ids"].take(state["request_id"])
    return cast(str, state["unique_id"])
