"""Declares an endpoint's input and output next to its function; `openapi` documents them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from quire.server.errors import ErrorBody
from quire.system.records import dataclass

Endpoint = Callable[[Request], Awaitable[Response]]
E = TypeVar("E", bound=Endpoint)

JSON = "application/json"
EVENTS = "text/event-stream"

OF_ENGINE = (HTTPStatus.SERVICE_UNAVAILABLE,)
"""Errors of endpoints that need the engine."""
OF_GENERATION = (HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS, *OF_ENGINE)
"""Errors of endpoints that name a model and use the queue."""

_ATTRIBUTE = "__quire_contract__"
_OF_BODIES = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)


@dataclass(frozen=True, slots=True)
class Contract:
    """An endpoint's input and output.

    Attributes:
        body: the type of the decoded body; None if it reads none.
        query: the type of the decoded query; None if it reads none.
        answer: the type of a whole answer, or a tuple of several; a media type if it is not JSON;
            None if it is empty.
        events: the type of a stream's events, if the endpoint can stream.
        errors: possible statuses other than 200.
        error: the type of their bodies; None if these are empty.
    """

    body: Any = None
    query: Any = None
    answer: Any = None
    events: Any = None
    errors: tuple[HTTPStatus, ...] = ()
    error: Any = ErrorBody


def contract(*, errors: Sequence[HTTPStatus] = (), **fields: Any) -> Callable[[E], E]:
    """Declare an endpoint's input and output: the fields of a `Contract`.

    The errors of reading a body or a query are added to `errors`.
    """
    found = Contract(**fields)
    if found.body is not None:
        errors = (*_OF_BODIES, *errors)
    elif found.query is not None:
        errors = (HTTPStatus.BAD_REQUEST, *errors)
    found = replace(found, errors=tuple(errors))

    def note(endpoint: E) -> E:
        setattr(endpoint, _ATTRIBUTE, found)
        return endpoint

    return note


def contract_of(endpoint: object) -> Contract:
    """Return an endpoint's contract; empty without one."""
    found: Contract = getattr(endpoint, _ATTRIBUTE, Contract())
    return found
