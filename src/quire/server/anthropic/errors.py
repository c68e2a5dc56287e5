"""Errors in the form of Anthropic's API, and the requests that get them."""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

_PATH = re.compile(r"(/v1)?/messages(/.*)?")
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


class ErrorDetails(msgspec.Struct):
    """The cause, for clients that can handle it."""

    error_code: str


class AnthropicError(msgspec.Struct):
    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct):
    """The body of every error."""

    error: AnthropicError
    request_id: str | None = None
    type: str = "error"


def speaks_anthropic(scope: Scope) -> bool:
    """Return whether a request uses Anthropic's API, by its path or headers."""
    if _PATH.fullmatch(scope["path"]) is not None:
        return True
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def anthropic_error(
    status: HTTPStatus, message: str, code: str | None = None, request_id: str | None = None
) -> AnthropicErrorBody:
    other = "api_error" if status >= 500 else "invalid_request_error"
    details = UNSET if code is None else ErrorDetails(code)
    error = AnthropicError(_TYPES.get(status, other), message, details)
    return AnthropicErrorBody(error, request_id)
