"""Rows 30 and 31: a client that goes takes its work with it, n > 1 too."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from quire.server.http.protocol import HttpProtocol
from tests.e2e.serving import Server, serving
from tests.e2e.tiny_model import write_tiny_model
from tests.faults.sites import HEAD, site, until

LONG = 8000
"""Tokens that take longer than a client takes to leave."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "long"
    model = write_tiny_model(folder, max_position_embeddings=LONG + 192)
    with serving(model, "--num-gpu-blocks-override", "2048") as running:
        yield running


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("n", [1, 3])
def test_row_30_client_leaves_a_stream(server: Server, n: int) -> None:
    tokens = server.metric("generation_tokens_total")
    body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True, "n": n, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    server.wait_until_idle()
    assert server.metric("generation_tokens_total") - tokens < n * LONG


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("n", [1, 3])
def test_row_31_client_leaves_without_a_stream(server: Server, n: int) -> None:
    ended = server.metric("request_success_total")
    body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True, "n": n}

    raw = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        while server.metric("num_requests_running") < n:
            time.sleep(0.01)
    server.wait_until_idle()
    assert server.metric("request_success_total") == ended + n


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
async def test_rows_30_and_31_within_one_step(
    stream: bool, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the moment the connection is known to be lost."""
    async with site(seconds=0.01) as where:
        core, steps, steps_then = where.app.core, 0, [0]
        step, lost = core.step, HttpProtocol.connection_lost

        def counted() -> object:
            nonlocal steps
            steps += core.has_work()
            return step()

        def noted(self: HttpProtocol, exc: Exception | None) -> None:
            steps_then[0] = steps
            lost(self, exc)

        monkeypatch.setattr(core, "step", counted)
        monkeypatch.setattr(HttpProtocol, "connection_lost", noted)
        client = await where.connect()
        body = {"model": "echo", "prompt": "{", "ignore_eos": True, "n": n, "stream": stream}
        raw = json.dumps(body).encode()
        await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        await until(lambda: steps >= 5)
        client.writer.transport.abort()
        await asyncio.sleep(0)
        await until(lambda: not core.has_work())
        assert steps - steps_then[0] <= 1
        await where.assert_unharmed()
