"""Requests that wait for their grammars and adapters, without delaying others."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from quire.core.errors import NOT_FOLLOWED, InvalidRequestError
from quire.core.request import Request

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.005
"""How long an idle core waits for a grammar before it looks for new messages."""


class Compiling:
    """A set of waiting requests. They leave it as soon as they are ready."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Request, Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def requests(self) -> list[Request]:
        return [request for request, _ in self._waiting.values()]

    def add(self, request: Request, ready: Future[Any]) -> None:
        self._waiting[request.request_id] = request, ready

    def abort(self, request_ids: Iterable[str]) -> None:
        """Remove requests; ignore unknown ids. Their compilations go on, for later requests."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def take(self, *, idle: bool) -> tuple[list[Request], list[tuple[Request, str]]]:
        """Return the ready requests, and the refused ones with the reason.

        Args:
            idle: the core has no other work; wait for a request up to `POLL_SECONDS`.
        """
        if idle:
            wait([ready for _, ready in self._waiting.values()], POLL_SECONDS, FIRST_COMPLETED)
        done = [pair for pair in self._waiting.values() if pair[1].done()]
        compiled: list[Request] = []
        refused: list[tuple[Request, str]] = []
        for request, ready in done:
            del self._waiting[request.request_id]
            error = ready.exception()
            if error is None:
                compiled.append(request)
                continue
            why = str(error) or repr(error)
            if not isinstance(error, InvalidRequestError):
                logger.error("a request could not be prepared", exc_info=error)
            elif request.sampling_params.structured_outputs is not None:
                why = NOT_FOLLOWED + why
            refused.append((request, why))
        return compiled, refused
