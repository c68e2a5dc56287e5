"""Errors for clients: in their API's shape, with the fix, without traceback or path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from quire.core.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    EngineRestartingError,
    EngineSleepingError,
    InvalidRequestError,
    ModelNotFoundError,
    OutOfMemoryError,
    QuireError,
    StructureUnavailableError,
)
from quire.server.anthropic.errors import anthropic_error, speaks_anthropic
from quire.server.http.json_text import encode

logger = logging.getLogger(__name__)

LONGEST_MESSAGE = 2000
"""Characters; an answer must not repeat a client's megabytes."""
LINGER_SECONDS = 5.0
"""How long to read the rest of a request that has its answer."""
RESTART_SECONDS = 5
"""`Retry-After` while the engine core starts, or while structures cannot be checked."""


_OPENAI = "use OpenAI's API, with a base URL that ends in /v1"
_ABSENT = {
    "audio is not served": "/v1/audio/ /v1/realtime",
    "the model writes no images; chats may have images": "/v1/images/",
    "`quire run-batch` answers the requests of a file": (
        "/v1/files /v1/batches /v1/messages/batches"
    ),
    "the server moderates nothing": "/v1/moderations",
    "/v1/responses has tools and stores conversations": (
        "/v1/assistants /v1/threads /v1/conversations"
    ),
    "the server does not summarize; truncation auto drops old turns": "/v1/responses/compact",
    "use /v1/models and /v1/completions": "/v1/engines",
    "send suffix to /v1/completions": "/v1/fim/",
    "send return_prompt_text, or use /tokenize": "/v1/chat/completions/render",
    "send one request for each conversation": "/v1/chat/completions/batch",
    "use /tokenize": "/v1/completions/render",
    "/v1/completions takes token ids; send return_token_ids, too": "/inference/v1/generate",
    "a request ends when its client closes the connection": "/abort_requests",
    "clients cannot change weights; /sleep and /wake_up load them again": (
        "/pause /resume /collective_rpc /update_weights"
    ),
    "use /v1/models, /version, /tokenizer_info and /metrics": (
        "/server_info /get_model_info /props /info"
    ),
    "GET /openapi.json describes all endpoints": "/docs /redoc",
    f"APIs of Ollama and LM Studio are not served; {_OPENAI}": "/api/",
    "use /health or /ready": "/healthz /livez /readyz /v1/health",
    _OPENAI: ("/openai/ /v1beta/ /v2/chat /generate /completion /invocations"),
}
"""What to do instead → beginnings of paths that clients ask other servers for."""


@contextmanager
def renamed(name_of: Callable[[str], str]) -> Iterator[None]:
    """Rename the fields in a chat's errors to those of the request's own API.

    Args:
        name_of: the chat's field → the API's.
    """
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        theirs = error.param or ""
        ours = name_of(theirs)
        if ours == theirs:
            raise
        status, body = describe(error)
        message = body.error.message
        if not theirs.isalpha():
            message = message.replace(theirs, ours)
        elif message.startswith(f"{theirs} "):  # elsewhere the name may be a normal word
            message = ours + message.removeprefix(theirs)
        raise ApiError(status, message, param=ours, code=body.error.code) from None


class ErrorInfo(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        self.message = _shortened(self.message)
        self.param = self.param and _shortened(self.param)


class ErrorBody(msgspec.Struct):
    """`{"error": {...}}`, the body of every error."""

    error: ErrorInfo


class ApiError(Exception):
    """An error with its HTTP status, raised by the server's own code."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers


class RequestFailedError(ApiError):
    """One request failed, for example with a NaN in its logits; others continue.

    The reason may contain a path or an address, so it goes to the log and not to the client.
    """

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "The engine could not finish this request; the server's log has the cause.",
            code="request_failed",
        )
        logger.error("request %s failed: %s", request_id, reason)


def invalid(message: str, param: str | None) -> ApiError:
    """Return a 400 that names the field `param`."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)


def not_supported(field: str, reason: str = "Leave it out of the request.") -> ApiError:
    """Return a 400 for a field of other servers that would change the answer.

    Args:
        reason: why it is not supported, or what to send instead; a sentence.
    """
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        f"{field} is not supported. {reason}",
        param=field,
        code="unsupported_parameter",
    )


def describe(error: Exception) -> tuple[HTTPStatus, ErrorBody]:
    """Return status and body for `error`; an unexpected one is a bare 500."""
    status, message = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    match error:
        case ApiError():
            status = error.status
        case InvalidRequestError():
            status = HTTPStatus.BAD_REQUEST
            code = code if isinstance(error, ContextLengthError) else None
        case ModelNotFoundError():
            status, param = HTTPStatus.NOT_FOUND, "model"
        case OutOfMemoryError() | ConfigError():
            # The request is valid, but this server's configuration cannot serve it.
            status, param = HTTPStatus.BAD_REQUEST, None
        case EngineRestartingError():
            message, param = f"{error.what} Send the request again.", None
        case EngineSleepingError():
            message, param = f"{error.what} POST /wake_up loads them again.", None
        case StructureUnavailableError():
            pass
        case EngineDeadError():
            message, param = "The engine has stopped; no request can be served.", None
        case QuireError():
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        case RecursionError():  # any function that walks a client's JSON may raise it
            status, message = HTTPStatus.BAD_REQUEST, "The request is nested too deeply."
        case HTTPException():
            status, message = HTTPStatus(error.status_code), error.detail
        case _:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            message = "An internal error occurred; the server's log has its cause."
            param = None
            code = "internal_error"
    return status, ErrorBody(ErrorInfo(message, _type(status), param, code))


def headers_of(error: Exception) -> dict[str, str] | None:
    """Return headers for an answer with `error`, such as Retry-After."""
    if isinstance(error, EngineRestartingError | StructureUnavailableError):
        return {"Retry-After": str(RESTART_SECONDS)}
    found: dict[str, str] | None = getattr(error, "headers", None)
    return found


def encode_error(error: Exception, scope: Scope | None) -> tuple[HTTPStatus, bytes]:
    """Return status and body of `error`, in the shape of the requested API.

    Args:
        scope: the request's, if its path and headers are known.
    """
    status, body = describe(error)
    if scope is None or not speaks_anthropic(scope):
        return status, encode(body)
    request_id = scope.get("state", {}).get("request_id")
    message = body.error.message
    if isinstance(error, ContextLengthError):  # clients recognize it by these words
        message = f"prompt is too long: {error.num_tokens} tokens > {error.limit - 1} maximum"
    found = anthropic_error(status, message, body.error.code, request_id)
    return status, encode(found)


class LingeringResponse(Response):
    """Sends the whole answer, then discards input for at most `LINGER_SECONDS`.

    Closing a connection with unread data resets it, and a reset can destroy an answer that the
    client has not read yet; most clients read only once they have sent everything.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def error_response(error: Exception, scope: Scope) -> Response:
    status, body = encode_error(error, scope)
    headers = headers_of(error)
    kind = LingeringResponse if closes(headers) else Response
    return kind(body, status, headers, "application/json")


def closes(headers: dict[str, str] | None) -> bool:
    """Return whether an answer closes its connection; an unread body may follow then."""
    return headers is not None and headers.get("Connection") == "close"


async def on_error(request: Request, error: Exception) -> Response:
    """Handle errors that are raised on purpose, for Starlette."""
    if isinstance(error, HTTPException):
        path = request.url.path
        absent = {begin: why for why, paths in _ABSENT.items() for begin in paths.split()}
        why = next((f": {absent[begin]}" for begin in absent if path.startswith(begin)), "")
        if error.status_code == HTTPStatus.NOT_FOUND or path in absent:
            error = ApiError(HTTPStatus.NOT_FOUND, f"There is no endpoint {path}{why}.")
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = ", ".join(sorted(_methods(request)))
            message = f"{path} does not answer {request.method}; use {allowed}."
            if request.method == "OPTIONS" and "origin" in request.headers:
                message += " --allowed-origins admits pages of other origins."
            headers = {"Allow": allowed}
            error = ApiError(HTTPStatus.METHOD_NOT_ALLOWED, message, headers=headers)
    _count(request, error)
    return error_response(error, request.scope)


def _count(request: Request, error: Exception) -> None:
    """Count a refused request by the error's code, for `quire explain`."""
    status, body = describe(error)
    if request.method == "POST" and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        request.app.state.server.engine.stats.refused[body.error.code or "invalid_request"] += 1


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes of the path; Starlette reports those of the first."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    found = (route.methods for route in routes if route.matches(request.scope)[0] != Match.NONE)
    return {method for methods in found for method in methods or ()}


def encode_event(error: Exception) -> bytes:
    """Return `error` as a server-sent event, for a stream that has begun."""
    return b"data: " + encode_error(error, None)[1] + b"\n\n"


def log_unexpected(error: Exception) -> None:
    """Log the traceback of a bug; errors raised on purpose are not bugs."""
    if not isinstance(error, ApiError | QuireError | HTTPException | RecursionError):
        logger.error("unexpected error in a request", exc_info=error)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Return 499, which access logs use for a client that has left."""
    return Response(status_code=499)


HANDLERS: dict[Any, Any] = {
    ClientDisconnect: on_disconnect,
    ApiError: on_error,
    QuireError: on_error,
    HTTPException: on_error,
    RecursionError: on_error,
}


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} …"


def _type(status: HTTPStatus) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return "authentication_error"
        case HTTPStatus.NOT_FOUND:
            return "not_found_error"
        case HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        case _:
            return "server_error" if status >= 500 else "invalid_request_error"
