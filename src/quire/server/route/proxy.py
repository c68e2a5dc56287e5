"""The application of `quire route`: passes each request to one of several servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus

import h11
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.metrics.families import CONTENT_TYPE, Family, exposition
from quire.routing.router import Prompt
from quire.server.errors import ApiError, encode_event, error_response, invalid, on_disconnect
from quire.server.http.connection import while_connected
from quire.server.route.record import SentPrompts, prompt_of
from quire.server.route.upstream import OF_CONNECTION, Answer, Upstream, UpstreamError

LAST_SECONDS = 25.0
"""How long requests in progress may take after a signal."""
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
ELSEWHERE = frozenset({429, 502, 503, 504})
"""Statuses of a server that is full, restarts or stops: another one may take the request."""
MAX_STORED = 2**16
"""Responses whose server is remembered."""
_STORED = re.compile(r"/responses/resp_([^/]+)")
_PREVIOUS = re.compile(rb'"previous_response_id"\s*:\s*"resp_([^"\\]+)"')
_ID = b"x-request-id"


class Router:
    """Sends each request to one server, and to another while it has no output."""

    def __init__(self, upstreams: Sequence[Upstream], max_body_bytes: int) -> None:
        self.upstreams = list(upstreams)
        self._max_body_bytes = max_body_bytes
        self._sent = SentPrompts(len(self.upstreams))
        self._stored: dict[str, int] = {}
        self.requests = [0] * len(self.upstreams)
        self.retries = 0

    @property
    def healthy(self) -> int:
        """Return the mask of the healthy servers."""
        return sum(1 << i for i, upstream in enumerate(self.upstreams) if upstream.is_healthy)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Check the servers' health meanwhile; begin with one check of each."""
        await asyncio.gather(*(upstream.check() for upstream in self.upstreams))
        tasks = [asyncio.create_task(upstream.watch()) for upstream in self.upstreams]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for upstream in self.upstreams:
                upstream.close()

    async def forward(self, request: Request) -> Response:
        """Return a server's answer."""
        body = await self._body(request)
        prompt = prompt_of(body) if request.method == "POST" else Prompt((), 1)
        target = request.scope["raw_path"].decode("latin-1")
        if query := request.scope["query_string"]:
            target += "?" + query.decode("latin-1")
        headers = [pair for pair in request.scope["headers"] if pair[0] not in OF_CONNECTION]
        stores = request.method == "POST" and request.url.path.endswith("/responses")
        if stores:  # a response is found by its id, so no two servers may have the same
            headers = [h for h in headers if h[0] != _ID or _text(h) not in self._stored]
        among = self.healthy
        owner = self._owner(request.url.path, body)
        if owner is not None:
            among = among & 1 << owner
        while among:
            chosen = self._sent.choose(prompt, among)
            among ^= 1 << chosen
            name = self._sent.begin(chosen, prompt)
            self.requests[chosen] += 1
            if stores:
                self._store(headers, chosen)
            try:
                asked = self.upstreams[chosen].ask(request.method, target, headers, body)
                answer = await while_connected(asked, request.receive)
            except UpstreamError:
                self._sent.failed(name)
                if not self.upstreams[chosen].is_healthy:
                    self._sent.forget(chosen)
            except h11.LocalProtocolError as error:
                self._sent.failed(name)
                raise invalid(f"The request cannot be passed on: {error}.", None) from None
            except BaseException:
                self._sent.failed(name)
                raise
            else:
                if answer.status not in ELSEWHERE or not among:
                    if stores:
                        self._store(answer.headers, chosen)
                    return self._passed_on(answer, chosen, name, prompt)
                self._sent.failed(name)
                answer.close()
            self.retries += bool(among)
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "No server behind this router is ready; try again shortly.",
            code="no_replica",
            headers={"Retry-After": "2"},
        )

    async def _body(self, request: Request) -> bytes:
        """Return the whole body; raises `ApiError` 413 if it is too large."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._max_body_bytes:
                raise ApiError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"The body is larger than {self._max_body_bytes} bytes.",
                    headers={"Connection": "close"},
                )
        return bytes(body)

    def _store(self, headers: Sequence[tuple[bytes, bytes]], server: int) -> None:
        """Note which server makes the response with the request's id."""
        for each in headers:
            if each[0] == _ID:
                self._stored[_text(each)] = server
        if len(self._stored) > MAX_STORED:
            del self._stored[next(iter(self._stored))]

    def _passed_on(self, answer: Answer, server: int, name: str, prompt: Prompt) -> Response:
        kind = dict(answer.headers).get(b"content-type", b"")
        is_stream = kind.startswith(b"text/event-stream")

        count = 0

        async def parts() -> AsyncIterator[bytes]:
            nonlocal count
            try:
                async for part in answer.parts():
                    if not count and answer.status == HTTPStatus.OK:
                        self._sent.answered(server, name, prompt)
                    count += 1
                    yield part
            except UpstreamError as error:
                if not is_stream:
                    raise  # the connection is closed: half an answer must not look whole
                yield encode_event(error)

        def end() -> None:
            answer.close()
            self._sent.ended(server, name, count)

        response = _Passed(parts(), answer.status, end)
        response.raw_headers = answer.headers
        return response

    def _owner(self, path: str, body: bytes) -> int | None:
        """Return the server that stores the response which a request names; None if none does."""
        found = _STORED.search(path)
        name = found[1] if found else None
        if name is None and (previous := _PREVIOUS.search(body)) is not None:
            name = previous[1].decode("utf-8", "replace")
        return None if name is None else self._stored.get(name)

    # -- endpoints ------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Answer 200 while a server is healthy."""
        return Response(status_code=200 if self.healthy else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the router's counters, for Prometheus."""
        families = [
            Family("quire:route_requests", "counter", "Requests sent to a server."),
            Family("quire:route_healthy", "gauge", "Whether a server is healthy."),
        ]
        for upstream, count in zip(self.upstreams, self.requests, strict=True):
            families[0].add({"replica": upstream.url}, count)
            families[1].add({"replica": upstream.url}, upstream.is_healthy)
        again = Family("quire:route_retries", "counter", "Requests sent to another server.")
        again.add({}, self.retries)
        return Response(exposition([*families, again]), headers={"Content-Type": CONTENT_TYPE})


class _Passed(StreamingResponse):
    """An answer that is passed on; `end` is called even if the client leaves before its body."""

    def __init__(self, parts: AsyncIterator[bytes], status: int, end: Callable[[], None]) -> None:
        super().__init__(parts, status)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


def _text(header: tuple[bytes, bytes]) -> str:
    return header[1].decode("latin-1")


def create_router_app(router: Router) -> Starlette:
    """Return the application; run it inside `router.lifespan`."""
    return Starlette(
        routes=[
            Route("/health", router.health),
            Route("/ready", router.health),
            Route("/metrics", router.metrics),
            Route("/{path:path}", router.forward, methods=METHODS),
        ],
        exception_handlers={
            ApiError: _on_error,
            HTTPException: _on_error,
            ClientDisconnect: on_disconnect,
        },
    )


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope)
