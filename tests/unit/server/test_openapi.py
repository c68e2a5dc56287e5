"""`/openapi.json`: in order, complete, and no second truth."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

from quire.server.contract import contract_of
from tests.unit.server.fake_engine import Running, running


async def test_it_asks_for_no_key_without_keys(app: Running) -> None:
    response = await app.http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    found = response.json()
    assert found["openapi"].startswith("3.1.")
    assert "components" in found
    assert "securitySchemes" not in found["components"]


async def test_every_route_is_in_it(app: Running) -> None:
    paths = (await app.http.get("/openapi.json")).json()["paths"]
    routes = [r for r in app.app.routes if isinstance(r, Route) and r.include_in_schema]
    assert {route.path.replace(":path", "") for route in routes} == set(paths)
    for route in routes:
        assert route.endpoint.__doc__, f"{route.path} says nothing of itself"
    chat = paths["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) >= {"200", "400", "404", "413", "415", "429", "500", "503"}
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


async def test_fields_say_what_they_are(app: Running) -> None:
    schemas = (await app.http.get("/openapi.json")).json()["components"]["schemas"]
    top_level = schemas["ChatRequest"]["properties"]
    assert "OpenAI's newer name" in top_level["max_completion_tokens"]["description"]
    assert "served model's name" in top_level["model"]["description"]  # inherited
    assert "additionalProperties" not in schemas["ChatRequest"]  # they are ignored
    assert "audio" not in top_level


async def test_a_body_is_decoded_to_the_type_that_is_documented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[Any] = []
    decode = msgspec.json.decode

    def spy(body: bytes, **options: Any) -> Any:
        decoded.append(options.get("type"))
        return decode(body, **options)

    async with running() as app:
        monkeypatch.setattr(msgspec.json, "decode", spy)
        for route in app.app.routes:
            if not isinstance(route, Route) or "POST" not in (route.methods or ()):
                continue
            decoded.clear()
            path = route.path.replace("{", "").replace("}", "")
            response = await app.http.post(path, json={"no_such_field": 1})
            body = contract_of(route.endpoint).body
            if body is not None:
                assert decoded[:1] == [body], route.path
                assert response.status_code == 400, route.path


async def test_every_json_answer_to_a_body_reports_ignored_fields(app: Running) -> None:
    own = {"/profile_ops"}  # no other server has it
    for route in app.app.routes:
        assert isinstance(route, Route)
        found = contract_of(route.endpoint)
        if found.body is not None and found.answer != "text/plain" and route.path not in own:
            assert "warnings" in found.answer.__struct_fields__, route.path
    for path, body in {
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [97]},
        "/v1/responses/input_tokens": {"input": "a"},
    }.items():
        answer = (await app.http.post(path, json={**body, "no_such_field": 1})).json()
        assert [each["param"] for each in answer["warnings"]] == ["no_such_field"], path


async def test_it_is_an_openapi_document_that_asks_for_keys_where_they_are_needed() -> None:
    async with running(api_keys=["secret"]) as app:
        assert (await app.http.get("/openapi.json")).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        found = (await app.http.get("/openapi.json", headers=headers)).json()
        validate(found)
        assert "security" not in found["paths"]["/health"]["get"]
        models = found["paths"]["/v1/models"]["get"]
        assert models["security"] == [{"bearer": []}, {"header": []}]
        assert "401" in models["responses"]


@pytest.mark.parametrize("query", ["window=0", "window=nan", "window=x", "windw=1", "evidence=2"])
async def test_a_wrong_query_is_refused(query: str, app: Running) -> None:
    response = await app.http.get(f"/explain?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]
