"""Errors of Anthropic's shape, on every path that a client of theirs asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.server.fake_engine import Running, running

THEIRS = {"anthropic-version": "2023-06-01"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "fields", "status", "kind"),
    [
        ("POST", "/v1/messages", {"content": "{", "headers": JSON}, 400, "invalid_request_error"),
        ("POST", "/v1/messages", {"json": {}}, 400, "invalid_request_error"),
        ("POST", "/v1/messages", {"content": "a"}, 415, "invalid_request_error"),
        ("POST", "/v1/messages", {"json": "a" * 5000}, 413, "request_too_large"),
        ("POST", "/v1/messages/count_tokens", {"content": "a"}, 415, "invalid_request_error"),
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", {}, 404, "not_found_error"),
        ("GET", "/v1/files", {"headers": THEIRS}, 404, "not_found_error"),
        ("GET", "/v1/models/other", {"headers": THEIRS}, 404, "not_found_error"),
    ],
)
async def test_every_path(
    method: str, path: str, fields: dict[str, Any], status: int, kind: str
) -> None:
    async with running(max_body_bytes=4096) as app:
        response = await app.http.request(method, path, **fields)
        body = response.json()
        assert response.status_code == status, response.text
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert set(body["error"]) - {"details"} == {"type", "message"}
        assert body["request_id"] == response.headers["request-id"]
        assert body["request_id"] == response.headers["x-request-id"]
        if status == 405:
            assert response.headers["allow"] == "POST"


async def test_a_wrong_key() -> None:
    async with running(api_keys=["secret"]) as app:
        response = await app.http.post("/v1/messages", json={})
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"


async def test_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("/secret/path")

    monkeypatch.setattr("quire.server.anthropic.messages.as_chat", broken)
    async with running() as app:
        fields = {"model": "echo", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        response = await app.http.post("/v1/messages", json=fields)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "api_error"
        assert "secret" not in response.text


async def test_others_get_openais(app: Running) -> None:
    for path in ("/v1/files", "/v1/messagesx", "/v2/messages"):
        response = await app.http.get(path)
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
        assert "request-id" not in response.headers


async def test_models(app: Running) -> None:
    app.http.headers.update(THEIRS)
    server = app.app.state.server
    app.app.state.server = replace(server, model_names=("a", "b", "org/c"))

    page = (await app.http.get("/v1/models?limit=2")).json()
    assert [model["id"] for model in page["data"]] == ["a", "b", "org/c"]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "org/c", False)
    one = (await app.http.get("/v1/models/org/c")).json()
    assert one["type"] == "model"
    assert one["max_input_tokens"] == app.engine.max_model_len
    assert one["created_at"].endswith("Z")
    del app.http.headers["anthropic-version"]
    assert (await app.http.get("/v1/models")).json()["object"] == "list"
