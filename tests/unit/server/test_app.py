"""Routes, errors, keys and limits."""

import asyncio
import re

import msgspec
import pytest
from starlette.routing import Route
from starlette.types import ASGIApp

from quire import __version__
from quire.frontend.workers.pool import CLIENT
from quire.server.app import create_app
from quire.server.http.middleware import ApiKeyMiddleware, RequestMiddleware
from tests.unit.server.fake_engine import Running, running

JSON = {"content-type": "application/json"}


async def test_health_follows_the_engine(app: Running) -> None:
    assert (await app.http.get("/health")).status_code == 200
    assert (await app.http.get("/ready")).status_code == 200
    app.core_client.die()
    assert (await app.http.get("/health")).status_code == 503
    assert (await app.http.get("/ready")).status_code == 503
    response = await app.complete()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_restarting"
    assert response.headers["retry-after"] == "5"
    assert (await app.http.get("/v1/models")).status_code == 200


async def test_version(app: Running) -> None:
    assert (await app.http.get("/version")).json() == {"version": __version__}


async def test_load() -> None:
    async with running(seconds=0.001) as app:
        assert (await app.http.get("/load")).json() == {"server_load": 0}
        task = asyncio.create_task(app.complete(n=3, max_tokens=100, ignore_eos=True))
        await asyncio.sleep(0)
        loads = set()
        while not task.done():
            loads.add((await app.http.get("/load")).json()["server_load"])
            await asyncio.sleep(0)
        assert 3 in loads


async def test_models(app: Running) -> None:
    [card] = (await app.http.get("/v1/models")).json()["data"]
    assert card["id"] == "echo"
    assert card["max_model_len"] == 256
    assert (await app.http.get("/v1/models/echo")).json() == card
    response = await app.http.get("/v1/models/other/model")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_served_names(app: Running) -> None:
    app.app = create_app(app.engine, ["first", "second"])
    app.http._transport.app = app.app  # type: ignore[attr-defined]
    assert (await app.complete(model="second")).json()["model"] == "second"
    assert (await app.complete(model=None)).json()["model"] == "first"
    assert (await app.complete()).status_code == 404


async def test_unknown_paths_and_methods(app: Running) -> None:
    response = await app.http.get("/nowhere")
    assert response.status_code == 404
    assert "/nowhere" in response.json()["error"]["message"]
    response = await app.http.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert (await app.http.post("/completion", json={})).status_code == 404
    response = await app.http.post("/v1/audio/transcriptions")
    assert response.status_code == 404
    assert "audio is not served" in response.json()["error"]["message"]
    response = await app.http.post("/api/chat", json={})
    assert response.status_code == 404
    assert "a base URL that ends in /v1" in response.json()["error"]["message"]
    for path, instead in (
        ("/healthz", "/health or /ready"),
        ("/v1/fim/completions", "send suffix to /v1/completions"),
    ):
        assert instead in (await app.http.get(path)).json()["error"]["message"]


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_other_spellings_of_a_path(prefix: str) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    async with running(root_path=prefix) as app:
        for path in ["/v1/completions", "/v1/completions/", "/completions", "/completions/"]:
            for found in {path, prefix + path}:
                assert (await app.http.post(found, json=body)).status_code == 200, found
        for path in ["/models/echo", "/v1/models/echo/", prefix + "/health/", prefix or "/"]:
            assert (await app.http.get(path)).status_code == 200, path
        for path in ["/v1//models", "/v1/v1/models", f"{prefix}/v1/v1/models/echo"]:
            assert (await app.http.get(path)).status_code == 200, path
        tokenized = await app.http.post(f"{prefix}/v1/tokenize/", json={"prompt": "a"})
        assert tokenized.json()["count"] == 1
        for path in ["/v2/completions", "/llmv1/models", "/v1v1/models"]:
            assert (await app.http.get(path)).status_code == 404, path
        assert "/v1." in (await app.http.get("/v1/")).json()["error"]["message"]


async def test_every_path_tells_its_methods(app: Running) -> None:
    routes = [route for route in app.app.routes if isinstance(route, Route)]
    for route in routes:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        own = {m for r in routes if r.path_regex.match(path) for m in r.methods or ()}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "NONE"} - own:
            response = await app.http.request(method, path)
            assert response.status_code == 405, (method, path)
            assert response.headers["allow"] == ", ".join(sorted(own)), (method, path)
    response = await app.http.post("/v1/responses/x")
    assert response.headers["allow"] == "DELETE, GET, HEAD"
    response = await app.http.post("/v1/responses/compact")  # OpenAI's, not an id
    assert (response.status_code, "truncation" in response.text) == (404, True)


async def test_request_ids(app: Running) -> None:
    response = await app.http.get("/health", headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    response = await app.http.get("/health", headers={"x-request-id": "a b\t{}"})
    assert len(response.headers["x-request-id"]) == 32
    first = await app.http.get("/nowhere")
    second = await app.http.get("/nowhere")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_a_repeated_request_id_is_served_again(app: Running) -> None:
    app.http.headers["x-request-id"] = "same"
    assert (await app.complete()).json()["id"] == "cmpl-same"
    again = await app.complete()
    assert (again.status_code, again.headers["x-request-id"]) == (200, "same")
    assert again.json()["id"].startswith("cmpl-same~")


async def test_keys() -> None:
    async with running(api_keys=["secret", "other"]) as app:
        assert (await app.http.get("/health")).status_code == 200
        paths = ["/ready", "/metrics", "/v1/models", "/models/", "/health/x", "/nowhere"]
        for path in [*paths, "/HEALTH", "/v1/health", "/health%2fx"]:
            response = await app.http.get(path)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
        for wrong in ["secret", "Bearer", "Bearer secre", "Bearer secrets", "Basic secret", "é"]:
            headers = {"authorization": wrong.encode()}
            response = await app.http.get("/v1/models", headers=headers)  # type: ignore[arg-type]
            assert response.status_code == 401, wrong
        for right in ["Bearer secret", "bearer other"]:
            response = await app.http.get("/v1/models", headers={"authorization": right})
            assert response.status_code == 200


async def test_clients_are_told_apart_by_address_and_key() -> None:
    """Their places in queues of work; headers that nobody checks make no other client."""
    found: list[str] = []

    async def note(scope: object, receive: object, send: object) -> None:
        found.append(CLIENT.get())

    async def ask(app: ASGIApp, host: str, key: str) -> None:
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "path": "/x", "headers": headers, "client": (host, 1)}
        await app(scope, None, None)  # type: ignore[arg-type]

    for app in (note, ApiKeyMiddleware(note, ["a", "b"])):
        for host, key in (("1.1.1.1", "a"), ("1.1.1.1", "b"), ("2.2.2.2", "a"), ("2.2.2.2", "a")):
            await ask(RequestMiddleware(app), host, key)
    assert len(set(found[:4])) == 2
    assert len(set(found[4:])) == 3
    assert all("a" not in client.split() for client in found)


async def test_a_bug_is_a_bare_500(monkeypatch: pytest.MonkeyPatch, app: Running) -> None:
    monkeypatch.setattr(app.engine, "default_sampling_params", None)
    response = await app.complete()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "Traceback" not in response.text
    assert "x-request-id" in response.headers


async def test_body_limit() -> None:
    async with running(max_body_bytes=1000) as app:
        assert (await app.complete(prompt="a" * 100)).status_code == 200
        response = await app.complete(prompt="a" * 1000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"

        async def endless():  # type: ignore[no-untyped-def]
            for _ in range(100):
                yield b" " * 100

        response = await app.http.post("/v1/completions", content=endless(), headers=JSON)
        assert response.status_code == 413


async def test_content_type(app: Running) -> None:
    response = await app.http.post("/v1/completions", content=b"{}")
    assert response.status_code == 415
    charset = {"content-type": "application/json; charset=utf-8"}
    body = msgspec.json.encode({"prompt": "a"})
    response = await app.http.post("/v1/completions", content=body, headers=charset)
    assert response.status_code == 200


async def test_two_applications_share_nothing() -> None:
    async with running() as first, running() as second:
        await first.complete()
        assert "generation_tokens_total" in (await second.http.get("/metrics")).text
        assert second.engine.stats.generation_tokens == 0


@pytest.mark.parametrize(
    "fields", [{"x" * 10**6: 1}, {"model": "x" * 10**6}, {"response_format": {"type": "x" * 10**6}}]
)
async def test_an_answer_repeats_no_megabytes(fields: dict[str, object], app: Running) -> None:
    response = await app.complete(**fields)
    assert response.status_code in (200, 400, 404)
    assert len(response.content) < 6000
