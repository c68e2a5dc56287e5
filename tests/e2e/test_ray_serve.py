"""Replicas of a server in Ray Serve: the same answers, and no stream lost in an update."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from quire.ray import build_app
from tests.e2e.serving import serving, until
from tests.e2e.tiny_model import write_tiny_model

ray = pytest.importorskip("ray", reason="needs quire[ray]")
serve = pytest.importorskip("ray.serve", reason="needs quire[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray's own
]
TOKENS = 6_000
ASKED = {"model": "tiny", "prompt": "once upon", "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "long"
    return write_tiny_model(folder, max_position_embeddings=TOKENS + 192)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """What talks to Ray Serve's proxy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=3, object_store_memory=80 * 2**20, include_dashboard=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=180) as found:
            yield found
        serve.shutdown()
    finally:
        ray.shutdown()


def deploy(model: Path, **flags: Any) -> None:
    args = {"model": str(model), "num_threads": 1, "served_model_name": "tiny", **flags}
    serve.run(build_app(args), name="quire")


def servers() -> list[psutil.Process]:
    """The processes of the replicas' servers."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "quire.ray.replica" in words:
            found.append(process)
    return found


def answer(client: httpx.Client, max_tokens: int = 8) -> str:
    response = client.post("/v1/completions", json=ASKED | {"max_tokens": max_tokens})
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def text_of(line: str) -> str:
    return str(json.loads(line.removeprefix("data: "))["choices"][0]["text"])


def test_a_stream_outlives_a_rolling_update(client: httpx.Client, model: Path) -> None:
    """The text is that of a server without Ray, whole and once; then the new replica answers."""
    with serving(model, "--num-threads", "1") as alone:
        whole = alone.text(**ASKED, max_tokens=TOKENS)
        short = alone.text(**ASKED, max_tokens=8)
    deploy(model)
    assert answer(client) == short
    [old] = servers()
    body = ASKED | {"max_tokens": TOKENS, "stream": True}
    update = threading.Thread(target=deploy, args=(model,), kwargs={"max_num_seqs": 7})
    events = []
    with client.stream("POST", "/v1/completions", json=body) as stream:
        for line in filter(None, stream.iter_lines()):
            if not events:
                update.start()
            events.append(line)
        ended = time.time()
    update.join()
    assert events.pop() == "data: [DONE]"
    assert "".join(map(text_of, events)) == whole
    until(lambda: not old.is_running())
    [new] = servers()
    assert new.pid != old.pid
    assert new.create_time() < ended, "the stream ended before the update began"
    assert answer(client) == short


@pytest.mark.parametrize("lost", ["server", "actor"])
def test_requests_of_a_lost_replica_go_to_its_successor(
    client: httpx.Client, model: Path, lost: str
) -> None:
    """A request without output is answered, although there was one replica only. A stream that had
    begun ends with an error event."""
    deploy(model)
    before = answer(client)
    [server] = servers()
    process = server if lost == "server" else server.parent()
    with ThreadPoolExecutor() as pool:
        body = ASKED | {"max_tokens": TOKENS, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = filter(None, stream.iter_lines())
            next(lines)
            whole = pool.submit(answer, client, max_tokens=TOKENS)
            process.kill()
            [*_, last] = lines
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_restarting"
        assert whole.result(120)
    assert answer(client) == before
    [successor] = servers()
    assert successor.pid != server.pid


def test_a_replica_whose_engine_is_dead_is_replaced(client: httpx.Client, model: Path) -> None:
    """Requests wait for its successor meanwhile."""
    deploy(model)
    before = answer(client)
    [server] = servers()

    def has_gone() -> bool:
        with suppress(psutil.NoSuchProcess):
            for process in server.children(recursive=True):
                if "quire.engine.process" in process.cmdline():
                    process.kill()
        return not server.is_running()

    with ThreadPoolExecutor() as pool:
        gone = pool.submit(until, has_gone, 120)
        while not gone.done():
            client.post("/v1/completions", json=ASKED | {"max_tokens": 8})
        gone.result()
    assert answer(client) == before
