"""ASGI middleware: path, request id, API key. None of them buffers."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.frontend.workers.pool import CLIENT
from quire.server.anthropic.errors import speaks_anthropic
from quire.server.errors import ApiError, error_response, log_unexpected
from quire.server.http.request_ids import RequestIds, choose_request_id
from quire.server.monitoring.pages import is_static

_SLASHES = re.compile("/{2,}")
OPEN_PATH = "/health"
"""The only endpoint without a key, for probes."""


class PathMiddleware:
    """Normalizes an endpoint's path, so that the layers below see one spelling.

    It removes a trailing slash, doubled slashes, and the prefix of a proxy. `/chat/completions`
    becomes `/v1/chat/completions`, for clients whose base URL lacks `/v1`. `/v1/tokenize` becomes
    `/tokenize` and `/v1/v1/messages` `/v1/messages`, for clients whose base URL has it.

    Args:
        prefix: the prefix under which a proxy serves this server, such as `/llm`; may be empty.
        paths: of all endpoints.
        polls: counts GET requests by path: of metrics, health and models, which no answer needs.
            Unknown paths count as one.
    """

    def __init__(
        self, app: ASGIApp, prefix: str, paths: Sequence[str], polls: Counter[str]
    ) -> None:
        self._app = app
        self._prefix = prefix
        self._paths = frozenset(paths)
        self._polls = polls
        under = {_first(path.removeprefix("/v1")) for path in paths if path.startswith("/v1/")}
        bare = {_first(path) for path in paths if path != OPEN_PATH} - {"", "v1"}
        self._versioned, self._bare = under - bare, bare - under

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = path = self._found(scope["path"])
            if scope["method"] == "GET":
                self._polls[path if path in self._paths else "other"] += 1
        await self._app(scope, receive, send)

    def _found(self, path: str) -> str:
        path = _SLASHES.sub("/", path)
        if self._prefix and f"{path}/".startswith(f"{self._prefix}/"):
            path = path[len(self._prefix) :] or "/"
        if path != "/":
            path = path.removesuffix("/")
        if path.startswith("/v1/v1/"):
            path = path.removeprefix("/v1")
        if _first(path) in self._versioned:
            return f"/v1{path}"
        rest = path.removeprefix("/v1")
        return rest if rest != path and _first(rest) in self._bare else path


def _first(path: str) -> str:
    """Return the first part of a path that begins with a slash."""
    return path.partition("/")[2].partition("/")[0]


class RequestMiddleware:
    """Gives each response an `X-Request-Id`: the client's own, or a new one.

    Anthropic's clients read it as `request-id`. The client's address is its place in queues. A bug
    becomes a bare 500, with a traceback in the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        chosen = choose_request_id(Headers(scope=scope).get("x-request-id"))
        state = {**scope.get("state", {}), "request_id": chosen, "request_ids": self._ids}
        scope["state"] = state
        CLIENT.set(str((scope.get("client") or ("",))[0]))

        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = state["request_id"]
                if speaks_anthropic(scope):
                    headers["request-id"] = state["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log_unexpected(error)
            if started:
                raise  # the server closes the connection: half an answer must not look whole
            await error_response(error, scope)(scope, receive, send_with_id)
        finally:
            if "unique_id" in state:  # see `state.request_id`
                self._ids.release(state["unique_id"])


class ApiKeyMiddleware:
    """Refuses each request without one of `keys`, except for `/health` and the dashboard's files.

    It checks the same decoded path as the router and denies by default, so that no other spelling
    of a path bypasses it. Clients with different keys have different places in queues.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]) or self._admits(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            HTTPStatus.UNAUTHORIZED,
            "The API key is missing or wrong; send it as 'Authorization: Bearer <key>'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(refusal, scope)(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            key = headers.get(b"x-api-key", b"")  # the header of Anthropic's clients
        offered = _digest(key.strip())
        # Compare all digests, which have equal length: the time reveals nothing about a key.
        matches = [hmac.compare_digest(offered, known) for known in self._digests]
        CLIENT.set(f"{CLIENT.get()} {offered.hex()[:16]}")
        return any(matches)


def _is_open(path: str) -> bool:
    return path == OPEN_PATH or is_static(path)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
