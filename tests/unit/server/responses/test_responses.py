"""The Responses API over the real front end and a model that says what it is told."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.errors import InvalidRequestError, reason_of
from quire.server.responses.item_types import InputText, Item, MessageItem
from quire.server.responses.protocol import ResponseObject
from quire.server.responses.store import ResponseStore
from tests.unit.server.fake_engine import MODEL, Running, running
from tests.unit.server.openai.test_tools import CALL, saying

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
THINKING = "{{ messages[0].content }}{% if 0 %}<think></think><tool_call>{% endif %}"


async def post(app: Running, path: str = "/v1/responses", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "Hi", "temperature": 0, **fields}
    return await app.http.post(path, json=body)


async def ask(app: Running, **fields: Any) -> dict[str, Any]:
    response = await post(app, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def get(app: Running, path: str) -> dict[str, Any]:
    response = await app.http.get(f"/v1/responses/{path}")
    assert response.status_code == 200, response.text
    return dict(response.json())


async def stream(app: Running, **fields: Any) -> list[dict[str, Any]]:
    """The events, whose framing and numbers are found to be right."""
    response = await post(app, stream=True, **fields)
    assert response.status_code == 200, response.text
    found = list(map(read_event, response.text.strip().split("\n\n")))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def read_event(text: str) -> dict[str, Any]:
    first, second = text.strip().split("\n")
    event = json.loads(second.removeprefix("data: "))
    assert first == f"event: {event['type']}"
    return dict(event)


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Without ids, times, and what the second of two equal requests finds cached."""
    for name in ("id", "created_at", "completed_at"):
        del response[name]
    del response["usage"]["input_tokens_details"]
    for item in response["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return response


async def test_a_response() -> None:
    async with saying("Hello.") as app:
        body = await ask(app, instructions="Be brief.", metadata={"a": "b"}, user="me")
        assert body["id"].startswith("resp_")
        assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)
        [item] = body["output"]
        assert item["content"] == [
            {"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}
        ]
        assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
        usage = body["usage"]
        assert usage["input_tokens"] == len("system:Be brief.user:Hi")
        assert usage["output_tokens"] == len("Hello.") + 1
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert body["metadata"] == {"a": "b"}
        assert body["instructions"] == "Be brief."
        assert body["text"]["format"]["type"] == "text"
        short = await ask(app, max_output_tokens=3)
        assert (short["status"], short["output"][0]["status"]) == ("incomplete", "incomplete")
        assert short["incomplete_details"] == {"reason": "max_output_tokens"}
        assert short["output"][0]["content"][0]["text"] == "Hel"


async def test_the_events_of_a_text() -> None:
    async with saying("Hi!") as app:
        found = await stream(app)
        # Deltas that wait for their reader become one.
        kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in found)]
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert found[0]["response"]["status"] == "in_progress"
        assert found[2]["item"]["content"] == []
        assert found[3]["part"]["text"] == ""
        assert "".join(e["delta"] for e in found[4:-4]) == found[-4]["text"] == "Hi!"
        assert {e["item_id"] for e in found[3:-2]} == {found[2]["item"]["id"]}
        assert found[-1]["response"]["output"] == [found[-2]["item"]]


@pytest.mark.parametrize(
    ("text", "fields", "kinds"),
    [
        ("Hello.", {}, ["message"]),
        ("", {}, ["message"]),
        ("<think>Hm.</think>Yes.", {}, ["reasoning", "message"]),
        ("Let me see. " + CALL, {"tools": [TOOL]}, ["message", "function_call"]),
        (CALL + CALL, {"tools": [TOOL]}, ["function_call", "function_call"]),
        (CALL + CALL, {"tools": [TOOL], "parallel_tool_calls": False}, ["function_call"]),
        (CALL, {"tools": [TOOL], "tool_choice": "none"}, ["message"]),
    ],
)
async def test_streamed_and_whole_are_the_same(
    text: str, fields: dict[str, Any], kinds: list[str]
) -> None:
    async with saying(text, chat_template=THINKING) as app:
        whole, streamed = await ask(app, **fields), await stream(app, **fields)
        assert [item["type"] for item in whole["output"]] == kinds
        done = [e["item"] for e in streamed if e["type"] == "response.output_item.done"]
        assert done == streamed[-1]["response"]["output"]
        assert comparable(streamed[-1]["response"]) == comparable(whole)
        added = [e for e in streamed if e["type"] == "response.output_item.added"]
        assert [e["output_index"] for e in added] == list(range(len(kinds)))
        if kinds[-1] == "function_call":
            last = whole["output"][-1]
            assert (last["name"], json.loads(last["arguments"])) == ("weather", {"city": "Paris"})
        if "reasoning" in kinds:
            assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
            assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Hm.")


async def test_logprobs(app: Running) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    body = await ask(app, **fields, max_output_tokens=2)
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert [one["logprob"] for one in logprobs] == [-0.5, -0.5]
    assert len(logprobs[0]["top_logprobs"]) == 2
    found = await stream(app, **fields, max_output_tokens=2)
    told = [e["logprobs"] for e in found if e["type"] == "response.output_text.delta"]
    assert [one for each in told for one in each] == logprobs
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == logprobs
    again = await ask(app, previous_response_id=body["id"], max_output_tokens=2)
    assert again["status"] == "incomplete"


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("<think>Hm.</think>\nYes, é.", ["Yes, é."]),
        (f"Let me see. {CALL} Well, {CALL}", ["Let me see.", "Well,"]),
        (CALL, []),
    ],
)
async def test_each_messages_logprobs_are_its_own(text: str, texts: list[str]) -> None:
    """Beside reasoning and calls, whole and in events."""
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "tools": [TOOL]}
    async with saying(text, chat_template=THINKING) as app:
        whole, events = await ask(app, **fields), await stream(app, **fields)
        told = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
        parts = [i["content"][0] for i in whole["output"] if i["type"] == "message"]
        assert [part["text"] for part in parts] == texts
        for part in parts:
            written = bytes(b for token in part["logprobs"] for b in token["bytes"])
            assert written.decode() == part["text"]
        assert [t for each in told for t in each] == [t for p in parts for t in p["logprobs"]]
        last = [i["content"][0] for i in events[-1]["response"]["output"] if i["type"] == "message"]
        assert last == parts


async def test_items_reach_the_template() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": "Where?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {
            "type": "function_call",
            "call_id": "1",
            "name": "weather",
            "arguments": '{"city": "Paris"}',
        },
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        {"role": "user", "content": "So?"},
    ]
    async with saying("ok") as app:
        usage = (await ask(app, input=items))["usage"]
        expected = "system:Be brief.user:Where?assistant:Paristool:sunnyuser:So?"
        assert usage["input_tokens"] == len(expected)


async def test_a_conversation_goes_on() -> None:
    async with saying("Let me see. " + CALL) as app:
        first = await ask(app, tools=[TOOL], instructions="Not carried over.")
        output = {
            "type": "function_call_output",
            "call_id": first["output"][1]["call_id"],
            "output": "sunny",
        }
        second = await ask(app, input=[output], previous_response_id=first["id"])
        expected = "user:Hiassistant:Let me see.Paristool:sunny"
        assert second["usage"]["input_tokens"] == len(expected)
        assert second["previous_response_id"] == first["id"]
        echoed = [{"role": "user", "content": "Hi"}, *first["output"], output]
        assert (await ask(app, input=echoed))["usage"]["input_tokens"] == len(expected)

        assert await get(app, first["id"]) == first
        for query in ("include=message.output_text.logprobs", "include[]=a&include[]=b"):
            found = await get(app, f"{first['id']}?{query}")
            assert [each["param"] for each in found.pop("warnings")] == ["include"]
            assert found == first
            listed = await get(app, f"{first['id']}/input_items?{query}")
            assert [each["param"] for each in listed["warnings"]] == ["include"]
        page = await get(app, f"{second['id']}/input_items?order=asc&limit=2")
        assert [item["type"] for item in page["data"]] == ["message", "message"]
        assert page["has_more"]
        rest = await get(app, f"{second['id']}/input_items?order=asc&after={page['last_id']}")
        assert [item["type"] for item in rest["data"]] == ["function_call", "function_call_output"]
        assert not rest["has_more"]

        deleted = await app.http.delete(f"/v1/responses/{first['id']}")
        assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
        assert (await app.http.get(f"/v1/responses/{first['id']}")).status_code == 404
        response = await post(app, previous_response_id=first["id"])
        assert response.status_code == 404
        assert response.json()["error"]["param"] == "previous_response_id"


async def test_in_the_background() -> None:
    async with running(seconds=0.001) as app:
        told = await ask(app, background=True, max_output_tokens=5)
        assert (told["status"], told["output"]) == ("queued", [])
        await app.app.state.responses.get(told["id"]).making.task
        found = await get(app, told["id"])
        assert found["output"][0]["content"][0]["text"] == ";<=>?"
        cancelled = await app.http.post(f"/v1/responses/{told['id']}/cancel")
        assert cancelled.json()["status"] == "incomplete"

        told = await ask(app, background=True, ignore_eos=True)
        response = await post(app, previous_response_id=told["id"])
        assert response.status_code == 400
        cancelled = await app.http.post(f"/v1/responses/{told['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert (await get(app, told["id"]))["status"] == "cancelled"
        assert app.engine.num_unfinished == 0
        assert (await post(app, background=True, input="x" * 300)).status_code == 400


def noting(execute: Any, begun: asyncio.Event, steps: int = 5) -> Any:
    """An executor's method that sets `begun` after so many steps."""

    def noted(batch: Any) -> Any:
        nonlocal steps
        steps -= 1
        if steps == 0:
            begun.set()
        return execute(batch)

    return noted


async def test_what_fails_is_told_in_an_event() -> None:
    async with running(seconds=0.001) as app:
        task = asyncio.create_task(stream(app, ignore_eos=True))
        begun = asyncio.Event()
        app.core.executor.execute = noting(app.core.executor.execute, begun)  # type: ignore[method-assign]
        await begun.wait()
        app.core_client.die()
        last = (await task)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"]["code"] == "engine_restarting"


async def test_a_request_that_is_refused_in_its_stream_has_an_invalid_prompt(app: Running) -> None:
    """Fields that leave no token at a later position are found there."""
    execute, refusal = (
        app.core.executor.execute,
        InvalidRequestError("None is left.", param="x"),
    )

    def refusing(batch: SchedulerOutput) -> ModelOutput:
        output = execute(batch)
        if batch.num_computed_tokens[0] > 5:
            output.sampled_token_ids[0] = -1
            output.errors[batch.request_ids[0]] = reason_of(refusal)
        return output

    app.core.executor.execute = refusing  # type: ignore[method-assign]
    last = (await stream(app, ignore_eos=True))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "invalid_prompt", "message": "None is left."}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "a", "rol": 1}]}, "input[0].rol"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a" * 300}, "input"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "lots"}}, "reasoning.effort"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "last"}, "truncation"),
        ({"truncation": "auto", "input": "a" * 300}, "input"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"background": True, "store": False}, "background"),
        ({"inputs": "a"}, "inputs"),
        ({"max_tokens": 4}, "max_tokens"),
        ({"messages": [{}]}, "messages"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ],
)
async def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    async with saying("ok") as app:
        response = await post(app, **fields)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"].startswith(param), error
        assert len(app.app.state.responses) == 0


async def test_tokens_are_counted_beforehand() -> None:
    async with saying("ok") as app:
        fields = {"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 2}
        response = await post(app, "/v1/responses/input_tokens", **fields)
        made = (await post(app, **fields)).json()
        used = made["usage"]["input_tokens"]
        assert response.json() == {"input_tokens": used, "object": "response.input_tokens"}
        more = {"input": "Go on.", "previous_response_id": made["id"]}
        longer = (await post(app, "/v1/responses/input_tokens", **more)).json()["input_tokens"]
        assert longer == (await post(app, **more)).json()["usage"]["input_tokens"]
        refused = await post(app, "/v1/responses/input_tokens", input=[])
        assert refused.json()["error"]["param"] == "input"


async def test_nothing_is_kept_without_a_store() -> None:
    async with saying("ok", max_stored_responses=0) as app:
        body = await ask(app)
        assert body["store"] is False
        assert (await app.http.get(f"/v1/responses/{body['id']}")).status_code == 404
        told = await ask(app, store=True)
        assert (told["store"], told["warnings"][0]["param"]) == (False, "store")
    async with saying("ok") as app:
        await ask(app, store=False)
        assert len(app.app.state.responses) == 0
        assert (await app.http.post("/v1/responses/x/cancel")).status_code == 404
        kept = await ask(app)
        response = await app.http.post(f"/v1/responses/{kept['id']}/cancel")
        assert response.status_code == 400


async def test_reasoning_effort_is_the_templates() -> None:
    template = "{{ messages[0].content }}{{ reasoning_effort }}{{ enable_thinking }}"
    async with saying("ok", chat_template=template) as app:
        assert (await ask(app, reasoning={"effort": "high"}))["usage"]["input_tokens"] == 6
        none = await ask(app, reasoning={"effort": "none"})
        assert none["usage"]["input_tokens"] == len("HiFalse")
    template = "{{ messages[0].content }}{{ enable_thinking or 'off' }}"
    async with saying("ok", chat_template=template) as app:
        for effort, shown in (("low", "HiTrue"), ("none", "Hioff"), (None, "Hioff")):
            found = await ask(app, reasoning={"effort": effort})
            assert found["usage"]["input_tokens"] == len(shown)
            assert ("warnings" in found) == (effort == "low")
    async with saying("ok", chat_template="{{ messages[0].content }}") as app:
        found = await ask(app, reasoning={"effort": "high"})
        assert [warning["param"] for warning in found["warnings"]] == ["reasoning.effort"]


async def test_what_is_too_long_loses_its_oldest_turns() -> None:
    roles = ("user", "assistant")
    turns = [{"role": role, "content": f"{role} {i:02}"} for i in range(20) for role in roles]
    told = {"role": "developer", "content": "Be brief."}
    items = [told, *turns, {"role": "user", "content": "?"}]
    async with saying("ok") as app:
        assert (await post(app, input=items)).status_code == 400
        body = await ask(app, input=items, truncation="auto", max_output_tokens=10)
        turn = len("user:user 00assistant:assistant 00")
        rest = len("system:Be brief.user:?")
        assert body["usage"]["input_tokens"] == rest + (256 - 10 - rest) // turn * turn
        whole = await ask(app, input=items[-2:], truncation="auto")
        assert whole["usage"]["input_tokens"] == len("assistant:assistant 19user:?")
        found = await get(app, f"{body['id']}/input_items?limit=100")
        assert len(found["data"]) == len(items)


def stored(name: str) -> ResponseObject:
    return ResponseObject(
        **dict.fromkeys(ResponseObject.__struct_fields__) | {"id": name, "output": []}
    )


def test_the_oldest_go_first() -> None:
    items: list[Item] = [MessageItem(role="user", content=[InputText("x" * 1000)], id="msg_1")]
    store = ResponseStore(2, max_bytes=10**6)
    for name in "abc":
        store.put(stored(name), [], items)
    assert len(store) == 2
    assert store.get("c").items == items
    small = ResponseStore(100, max_bytes=4000)
    for name in "abcd":
        small.put(stored(name), [], items)
    assert 1 <= len(small) < 4


def test_ids_are_unique() -> None:
    store = ResponseStore(2)
    assert store.new_id("mine") == "resp_mine"
    store.put(stored("resp_mine"), [], [])
    assert store.new_id("mine") != "resp_mine"
