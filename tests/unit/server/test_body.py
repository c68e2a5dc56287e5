"""Strict JSON, errors that name the field, and fields that have no effect."""

import asyncio
import difflib
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from starlette.requests import Request

from quire.server.errors import ApiError
from quire.server.http.body import read_request
from quire.server.leniency import MAX_UNKNOWN, similar
from quire.server.notices import MAX_NOTICES, notices_of
from quire.server.openai.protocol import ChatRequest, CompletionRequest
from quire.server.options import AppOptions


def decode(body: bytes, kind: type[Any], *, strict: bool = False) -> tuple[Any, dict[str, str]]:
    """What `read_request` makes of a body, and its notices by field."""
    stats = SimpleNamespace(ignored_fields=Counter[str]())
    options = AppOptions(max_body_bytes=2**20, strict_fields=strict)
    server = SimpleNamespace(options=options, engine=SimpleNamespace(stats=stats))
    app = SimpleNamespace(state=SimpleNamespace(server=server))
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "path": "/p", "headers": headers, "state": {}, "app": app}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    request = Request(scope, receive)
    decoded = asyncio.run(read_request(request, kind))
    notices = notices_of(request)
    found = {} if notices is UNSET else {each.param: each.message for each in notices}
    assert stats.ignored_fields["/p"] >= min(len(found), MAX_NOTICES)
    return decoded, found


def refusal(body: bytes, *, strict: bool = False) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(body, CompletionRequest, strict=strict)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "a"',
        b'{"prompt": "a"} x',
        b'{"prompt": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000,
        b'{"tools": ' + b"[" * 100_000,
        b'{"x": ' + b'{"a":' * 100_000,
        b"[]",
        b"null",
        b'"prompt"',
    ],
)
def test_bad_json(body: bytes) -> None:
    refusal(body)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"prompt": 1}', "prompt", "Expected"),
        (b'{"prompt": "a", "n": "two"}', "n", "Expected `int | null`, got `str`"),
        (b'{"prompt": "a", "n": true}', "n", "bool"),
        (b'{"prompt": "a", "max_tokens": 1.5}', "max_tokens", "float"),
        (b'{"prompt": "a", "temprature": 1}', "temprature", "did you mean temperature"),
        (b'{"prompt": "a", "vllm_xargs": {"a": 1}}', "vllm_xargs", "The server has no plug-ins"),
        (b'{"prompt": "a", "multi_modal_data": {"image": "b"}}', "multi_modal_data", "of a chat"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias", "Expected `int`"),
        (b'{"prompt": "a", "logit_bias": {"1": "x"}}', "logit_bias", "Expected `float`"),
        (b'{"prompt": "a", "stop": [1]}', "stop[0]", "Expected `str`"),
        (b'{"prompt": "a", "maxTokens": 1}', "maxTokens", "did you mean max_tokens"),
        (
            b'{"prompt": "a", "stream_options": {"includeUsage": 1}}',
            "stream_options.includeUsage",
            "did you mean include_usage",
        ),
        (b'{"prompt": "a", "num_beams": 2}', "num_beams", "Send use_beam_search"),
        (b'{"prompt": "a", "mirostat": 2}', "mirostat", "docs/compatibility.md"),
        (b'{"prompt": "a", "mirostat": false}', "mirostat", "not supported"),
        (b'{"prompt": "a", "repeat_penalty": 1.1}', "repeat_penalty", "repetition_penalty"),
        (b'{"prompt": "a", "stopping_strings": ["b"]}', "stopping_strings", "stop"),
        (b'{"prompt": "a", "banned_strings": ["b"]}', "banned_strings", "bad_words"),
    ],
)
def test_errors_name_the_field(body: bytes, param: str, words: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert words in str(error)
    assert param in str(error)


@pytest.mark.parametrize("kind", ["input_audio", "file"])
def test_a_part_that_is_no_text(kind: str) -> None:
    part = b'{"type": "text", "text": "a"}, {"type": "%b", "x": {}}' % kind.encode()
    with pytest.raises(ApiError, match="audio, video and files are not served") as caught:
        decode(b'{"messages": [{"role": "user", "content": [%b]}]}' % part, ChatRequest)
    assert caught.value.param == "messages[0].content[1].type"
    assert kind in str(caught.value)


@pytest.mark.parametrize(
    ("body", "param", "known"),
    [
        (
            b'{"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": ""}]}]}',
            "messages[0].content[0].type",
            "image_embeds or image_url or refusal or text",
        ),
        (b'{"messages": [], "tools": [{"type": "mcp"}]}', "tools[0].type", "custom or function"),
        (
            b'{"messages": [], "response_format": {"type": "xml"}}',
            "response_format.type",
            "json_object or json_schema or structural_tag or text",
        ),
    ],
)
def test_a_wrong_choice_is_told_the_right_ones(body: bytes, param: str, known: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(body, ChatRequest)
    assert caught.value.param == param
    assert str(caught.value).endswith(f"; it may be {known}.")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_error(body: bytes) -> None:
    with suppress(ApiError):
        decode(body, ChatRequest)


@pytest.mark.parametrize(
    "field",
    [
        b'"user": "me"',
        b'"user": {"any": ["thing"]}',
        b'"store": true',
        b'"metadata": {"a": "b"}',
        b'"prompt_cache_retention": "24h"',
        b'"service_tier": "scale"',
        b'"negative_prompt": ""',
        b'"typical_p": 1',
        b'"mirostat": 0',
        b'"mirostat_tau": 5.0',
        b'"repeat_penalty": 1.0',
        b'"keep_alive": 5',
        b'"stream_options": {"include_obfuscation": true}',
        b'"stream_options": {"zzz": 1}',
        b'"zzz": 1',
        b'"a\\nb": 1',
    ],
)
def test_fields_without_effect_are_reported(field: bytes) -> None:
    decoded, notices = decode(
        b'{"prompt": "a", "logit_bias": {"7": 1}, %b}' % field, CompletionRequest
    )
    assert decoded.prompt == "a"
    assert decoded.logit_bias == {7: 1.0}
    [param] = notices
    assert param.split(".")[-1].replace("\n", "\\n").encode() in field


@given(st.sampled_from(CompletionRequest.__struct_fields__), st.data())
def test_typos_are_those_that_difflib_finds(name: str, data: st.DataObject) -> None:
    letters = list(name)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(letters)))
        letters[place : place + data.draw(st.integers(0, 1))] = data.draw(
            st.text("aeort_é", max_size=1)
        )
    fields = {each.replace("_", ""): each for each in CompletionRequest.__struct_fields__}
    plain = "".join(letters).lower().replace("_", "")
    close = difflib.get_close_matches(plain, fields, n=1, cutoff=0.85)
    assert similar("".join(letters), fields.values()) == (fields[close[0]] if close else None)


def test_unknown_fields_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may have hundreds, and `difflib` would hold all other requests up meanwhile."""
    compared = 0
    find = difflib.get_close_matches

    def counted(word: str, names: Any, **options: Any) -> list[str]:
        nonlocal compared
        compared += len(names)
        return find(word, names, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    unknown = b", ".join(b'"z%d": 1' % index for index in range(MAX_UNKNOWN))
    decode(b'{"prompt": "a", %b}' % unknown, CompletionRequest)
    assert compared <= MAX_UNKNOWN


def test_whole_numbers_are_integers() -> None:
    """And the mark that some editors put before a text is no part of it."""
    body = b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 5.0, "n": 2e0, "temperature": 1.0}'
    decoded, notices = decode(body, CompletionRequest, strict=True)
    assert [decoded.max_tokens, decoded.n, notices] == [5, 2, {}]
    assert type(decoded.max_tokens) is int
    for number in (b"5.5", b"1e300", b'"5.5"', b'"five"', b'" 5"', b"true"):
        assert refusal(b'{"prompt": "a", "max_tokens": %b}' % number).param == "max_tokens"


def test_numbers_and_booleans_may_be_strings() -> None:
    """Other servers read them, too. A string that may be a text stays one."""
    body = (
        b'{"prompt": "5", "max_tokens": "7", "seed": "-18446744073709551", "temperature": "0.5",'
        b' "top_p": "1", "logprobs": "2", "stream": "False", "ignore_eos": 1, "stop": "5"}'
    )
    decoded, notices = decode(body, CompletionRequest, strict=True)
    assert [decoded.prompt, decoded.stop, notices] == ["5", "5", {}]
    assert [decoded.max_tokens, decoded.seed, decoded.logprobs] == [7, -18446744073709551, 2]
    assert [decoded.temperature, decoded.top_p] == [0.5, 1.0]
    assert (decoded.stream, decoded.ignore_eos) == (False, True)
    for value in (b'"yes"', b"2", b"0.5"):
        assert refusal(b'{"prompt": "a", "stream": %b}' % value).param == "stream"


def test_the_same_value_under_another_name() -> None:
    """Some clients send one limit under each name that they know."""
    body = b'{"prompt": "a", "max_tokens": 7, "max_new_tokens": 7, "n_predict": %b}'
    decoded, notices = decode(body % b"7", CompletionRequest)
    assert decoded.max_tokens == 7
    assert [*notices] == ["max_new_tokens", "n_predict"]
    assert refusal(body % b"8").param == "n_predict"
    assert refusal(b'{"prompt": "a", "max_new_tokens": 7}').param == "max_new_tokens"
    assert refusal(b'{"prompt": "a", "echo": true, "return_full_text": 1}').param is not None
    with pytest.raises(ApiError):
        decode(body % b"7", CompletionRequest, strict=True)


def test_numbers_in_lists_and_objects_may_be_strings() -> None:
    body = (
        b'{"prompt": ["5", "6"], "stop_token_ids": ["7", 8.0], "allowed_token_ids": [1, 2.0],'
        b' "logit_bias": {"5": "1", "6": 2}}'
    )
    decoded, notices = decode(body, CompletionRequest, strict=True)
    assert [decoded.prompt, decoded.stop_token_ids] == [["5", "6"], [7, 8]]
    assert [decoded.allowed_token_ids, notices] == [[1, 2], {}]
    assert decoded.logit_bias == {5: 1.0, 6: 2.0}
    for value in (b'["x"]', b"[1.5]", b"[true]"):
        assert refusal(b'{"prompt": "a", "stop_token_ids": %b}' % value).param is not None


@pytest.mark.parametrize("name", [b"suffix", b"mirostat", b"user", b"keep_alive"])
def test_null_is_nothing_to_report(name: bytes) -> None:
    body = b'{"prompt": "a", "%b": null}' % name
    assert decode(body, CompletionRequest)[1] == {}
    assert decode(body, CompletionRequest, strict=True)[1] == {}


@pytest.mark.parametrize(
    ("field", "param"),
    [
        (b'"zzz": 1', "zzz"),
        (b'"zzz": null', "zzz"),
        (b'"negative_prompt": ""', "negative_prompt"),
        (b'"metadata": {}', "metadata"),
        (b'"store": true', "store"),
        (b'"keep_alive": 5', "keep_alive"),
        (b'"stream_options": {"zzz": 1}', "stream_options.zzz"),
    ],
)
def test_strict_fields(field: bytes, param: str) -> None:
    assert refusal(b'{"prompt": "a", %b}' % field, strict=True).param == param


def test_strict_fields_have_labels() -> None:
    body = b'{"prompt": "a", "user": "me", "store": false, "service_tier": "auto"}'
    assert decode(body, CompletionRequest, strict=True)[1].keys() == {
        "user", "store", "service_tier"
    }  # fmt: skip


def test_a_field_of_many_objects_is_reported_once() -> None:
    message = (
        b'{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1}], "id": 1}'
    )
    body = b'{"messages": [%b]}' % b", ".join([message] * 2000)
    decoded, notices = decode(body, ChatRequest)
    assert len(decoded.messages) == 2000
    assert {param.partition(".")[2] for param in notices} == {"id", "content[0].cache_control"}


def test_many_unknown_fields() -> None:
    def body(count: int) -> bytes:
        fields = b", ".join(b'"%b": 1' % (b"%03d" % n + b"z" * 200) for n in range(count))
        return b'{"prompt": "a", %b}' % fields

    notices = decode(body(MAX_UNKNOWN), CompletionRequest)[1]
    assert len(notices) == MAX_NOTICES + 1
    assert notices[""] == f"There are {MAX_UNKNOWN - MAX_NOTICES} more notices."
    assert "unknown fields" in str(refusal(body(MAX_UNKNOWN + 1)))
