"""Rows 1, 6 to 12 and 35, and the JSON rows 2 to 5 and 16, on both endpoints of a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.serving import Server
from tests.faults.free_json import bodies, structures
from tests.faults.requests import assert_no_secret, assert_refused

JSON = {"content-type": "application/json"}
PATHS = ["/v1/completions", "/v1/chat/completions"]
VALID: dict[str, dict[str, Any]] = {
    PATHS[0]: {"prompt": "a", "max_tokens": 2},
    PATHS[1]: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
}


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


pytestmark = pytest.mark.usefixtures("unharmed")


def refused(server: Server, path: str, param: str, *words: str, **fields: Any) -> None:
    response = server.http.post(path, json={**VALID[path], **fields})
    assert_refused(response, param, *words)


def raw(server: Server, path: str, body: bytes) -> None:
    response = server.http.post(path, content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert_no_secret(response.text)


def only_the_value_is_wrong(server: Server, path: str, field: str, good: bytes, bad: bytes) -> None:
    """The same body with a `good` value is served."""

    def body(value: bytes) -> bytes:
        return json.dumps(VALID[path])[:-1].encode() + b', "%b": %b}' % (field.encode(), value)

    served = server.http.post(path, content=body(good), headers=JSON)
    assert served.status_code == 200, served.text
    raw(server, path, body(bad))


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "a', b'{"messages": [{"role"'])
def test_row_1_truncated_json(server: Server, path: str, body: bytes) -> None:
    raw(server, path, body)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, DEEP])
def test_row_2_deep_json(server: Server, path: str, body: bytes) -> None:
    raw(server, path, body)


def test_row_2_deep_json_in_a_field(server: Server, path: str) -> None:
    only_the_value_is_wrong(server, path, "stop", b'["x"]', DEEP)
    only_the_value_is_wrong(server, path, "guided_json", b"{}", b'{"enum": [%b]}' % DEEP)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_row_3_not_finite(server: Server, path: str, number: bytes) -> None:
    only_the_value_is_wrong(server, path, "temperature", b"0.5", number)


@pytest.mark.parametrize("value", [b"NaN", b'"\\ud800"'])
def test_row_4_loose_fields(server: Server, path: str, value: bytes) -> None:
    only_the_value_is_wrong(server, path, "user", b'"me"', value)
    kwargs = b'{"x": "me"}', b'{"x": %b}' % value
    only_the_value_is_wrong(server, PATHS[1], "chat_template_kwargs", *kwargs)


def test_row_5_bad_utf8_and_huge_integers(server: Server, path: str) -> None:
    only_the_value_is_wrong(server, path, "user", b'"me"', b'"\xff\xfe"')
    only_the_value_is_wrong(server, path, "seed", b"1", b"9" * 5000)
    kwargs = b'{"x": 1}', b'{"x": %b}' % (b"9" * 5000)
    only_the_value_is_wrong(server, PATHS[1], "chat_template_kwargs", *kwargs)


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"temprature": 1}, "temprature", "did you mean temperature"),
        ({"max-tokens": 1}, "max-tokens", "did you mean max_tokens"),
        ({"use_beam_search": True, "top_k": 3}, "top_k", "Beam search"),
        ({"max_tokens": "five"}, "max_tokens", "str"),
        ({"max_tokens": 5.5}, "max_tokens", "float"),
        ({"stream": "yes"}, "stream", "str"),
        ({"stop": {"a": 1}}, "stop", "object"),
        ({"logit_bias": [1]}, "logit_bias", "array"),
        ({"response_format": {"type": "json_objects"}}, "response_format.type", "Invalid enum"),
        ({"guided_json": {"uniqueItems": True}}, "guided_json", "uniqueItems"),
        ({"seed": 2**63}, "seed", "seed"),
    ],
)
def test_row_6_unknown_or_wrong_typed_fields(
    server: Server, path: str, fields: dict[str, Any], param: str, word: str
) -> None:
    refused(server, path, param, word, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1},
        {"temperature": "nan"},
        {"top_p": "inf"},
        {"temperature": 1e308},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"min_p": -0.1},
        {"presence_penalty": 1e9},
        {"frequency_penalty": -3},
        {"repetition_penalty": 1e30},
        {"repetition_penalty": 0},
        {"repetition_penalty": 5e-324},
    ],
)
def test_row_7_sampling_out_of_range(server: Server, path: str, fields: dict[str, Any]) -> None:
    [(name, value)] = fields.items()
    refused(server, path, name, name, str(float(value) if value == 1e308 else value), **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 129},
        {"n": 0},
        {"prompt_logprobs": 21},
        {"stop": ["x"] * 65},
        {"stop": "x" * 1025},
        {"stop": ""},
        {"logit_bias": {str(i): 1 for i in range(1025)}},
        {"logit_bias": {"1": 101}},
    ],
)
def test_row_8_over_the_caps(server: Server, path: str, fields: dict[str, Any]) -> None:
    [name] = fields
    refused(server, path, name, name.rstrip("_"), **fields)


def test_row_8_logprobs(server: Server) -> None:
    refused(server, PATHS[0], "logprobs", "20", logprobs=21)
    refused(server, PATHS[1], "top_logprobs", "20", logprobs=True, top_logprobs=21)


@pytest.mark.parametrize("value", [0, -1])
def test_row_9_max_tokens(server: Server, path: str, value: int) -> None:
    refused(server, path, "max_tokens", str(value), max_tokens=value)


def test_row_9_max_tokens_beyond_the_context(server: Server, path: str) -> None:
    content = "a" * 480
    long = {"messages": [{"role": "user", "content": content}], "prompt": content}
    [name] = long.keys() & VALID[path].keys()
    body = {**VALID[path], name: long[name], "max_tokens": 10**9, "ignore_eos": True}
    answer = server.http.post(path, json=body).json()
    assert answer["usage"]["total_tokens"] == 512
    [warning] = answer["warnings"]
    assert warning["param"] == "max_tokens"
    assert "instead of 1000000000" in warning["message"]


def test_row_9_max_completion_tokens(server: Server) -> None:
    refused(
        server, PATHS[1], "max_completion_tokens", "0", max_completion_tokens=0, max_tokens=None
    )


def test_row_10_prompt_longer_than_the_context(server: Server) -> None:
    refused(server, PATHS[0], "prompt", "600", "512", prompt="a" * 600)
    messages = [{"role": "user", "content": "a" * 600}]
    body = {**VALID[PATHS[1]], "messages": messages}
    counted = server.http.post("/tokenize", json={"messages": messages}).json()["count"]
    assert_refused(server.http.post(PATHS[1], json=body), "messages", str(counted), "512")


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""]])
def test_row_11_empty_prompt(server: Server, prompt: object) -> None:
    refused(server, PATHS[0], "prompt", "empty", prompt=prompt)


def test_row_11_empty_messages(server: Server) -> None:
    refused(server, PATHS[1], "messages", "empty", messages=[])


@pytest.mark.parametrize("token", [258, 2**31, 2**62, -1])
def test_row_12_token_ids_beyond_the_vocabulary(server: Server, token: int) -> None:
    taken = server.metric("prompt_tokens_total")
    refused(server, PATHS[0], "prompt", str(token), "257", prompt=[1, token])
    refused(server, PATHS[0], "stop_token_ids", str(token), stop_token_ids=[token])
    refused(server, PATHS[1], "logit_bias", str(token), logit_bias={str(token): 1})
    assert server.metric("prompt_tokens_total") == taken


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("chunked", [False, True])
def test_row_16_large_body(server: Server, path: str, chunked: bool) -> None:
    body = b" " * 2**20
    content = (body for _ in range(200)) if chunked else body * 40
    response = server.http.post(path, content=content, headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"allowed_token_ids": [1, 2], "guided_regex": "x+"}, "guided_regex", "allowed_token_ids"),
    ({"guided_choice": ["xy"], "bad_words": ["y"]}, "guided_choice", "bad_words"),
    ({"guided_choice": ["xy" * 9], "bad_words": ["yx"]}, "guided_choice", "bad_words"),
    ({"allowed_token_ids": [257], "min_tokens": 2}, "allowed_token_ids", "min_tokens"),
    ({"guided_choice": ["xy"], "allowed_token_ids": [0]}, "guided_choice", "allowed_token_ids"),
]


@pytest.mark.parametrize(("fields", "param", "other"), CONTRADICTIONS)
def test_row_61_fields_that_leave_no_token(
    server: Server, path: str, fields: dict[str, Any], param: str, other: str
) -> None:
    fields = {"max_tokens": 30, **fields}
    refused(server, path, param, other, **fields)
    stream = server.http.post(path, json={**VALID[path], **fields, "stream": True})
    if stream.status_code == 200:  # it had begun
        *_, error, done = stream.text.strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == "invalid_request_error"
        assert done == "data: [DONE]"
    else:
        assert_refused(stream, param, other)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400], ids=["2^64", "-2^63-1", "1e400"])
def test_row_5_integers_beyond_64_bits_that_change_nothing(server: Server, number: int) -> None:
    for where, body in bodies(number):
        response = server.http.post(where, json=body)
        assert response.status_code == 200, (where, body, response.text)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400], ids=["2^64", "-2^63-1", "1e400"])
def test_row_5_integers_beyond_64_bits_that_would_be_rounded(server: Server, number: int) -> None:
    for where, body, param in structures(number):
        assert_refused(server.http.post(where, json=body), param)
    for where, body in [*VALID.items(), ("/v1/responses", {"input": "a"})]:
        response = server.http.post(where, json={**body, "priority": number})
        assert_refused(response, "priority", "2**63")


def with_text(body: dict[str, Any], text: str) -> bytes:
    """The body with JSON of its own in place of each "@", also within texts of JSON."""
    whole = json.dumps(body).replace(r"\"@\"", text.replace('"', r"\"")).replace('"@"', text)
    assert text in whole.replace("\\", "")
    return whole.encode()


@pytest.mark.parametrize("depth", [30, 300, 500, 800, 900, 940, 960, 975, 985])
def test_row_2_json_that_is_too_deep_for_some(server: Server, depth: int) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    for where, body in bodies("@"):
        response = server.http.post(where, content=with_text(body, text), headers=JSON)
        assert response.status_code in ((200,) if depth == 30 else (200, 400)), response.text
    for where, body, _ in structures("@"):
        response = server.http.post(where, content=with_text(body, text), headers=JSON)
        assert response.status_code in ((200,) if depth == 30 else (400,)), response.text
