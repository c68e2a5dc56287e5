"""Strict JSON, and errors that name the field."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.body import decode
from quire.server.errors import ApiError
from quire.server.openai.protocol import ChatRequest, CompletionRequest


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(body, CompletionRequest)
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
        (b'{"prompt": "a", "n": "2"}', "n", "Expected `int | null`, got `str`"),
        (b'{"prompt": "a", "n": true}', "n", "bool"),
        (b'{"prompt": "a", "max_tokens": 1.5}', "max_tokens", "float"),
        (b'{"prompt": "a", "temprature": 1}', "temprature", "did you mean temperature"),
        (b'{"prompt": "a", "a\\nb": 1}', "a\nb", "Unknown field"),
        (b'{"prompt": "a", "suffix": "b"}', "suffix", "not supported yet"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias", "Expected `int`"),
        (b'{"prompt": "a", "logit_bias": {"1": "x"}}', "logit_bias", "Expected `float`"),
        (b'{"prompt": "a", "stop": [1]}', "stop[0]", "Expected `str`"),
        (b'{"prompt": "a", "stream_options": {"x": 1}}', "stream_options.x", "Unknown"),
    ],
)
def test_errors_name_the_field(body: bytes, param: str, words: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert words in str(error)
    assert param in str(error)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_a_part_that_is_no_text(kind: str) -> None:
    part = b'{"type": "text", "text": "a"}, {"type": "%b", "x": {}}' % kind.encode()
    with pytest.raises(ApiError, match="images, audio and files are not served") as caught:
        decode(b'{"messages": [{"role": "user", "content": [%b]}]}' % part, ChatRequest)
    assert caught.value.param == "messages[0].content[1].type"
    assert kind in str(caught.value)


@pytest.mark.parametrize(
    ("body", "param", "known"),
    [
        (
            b'{"messages": [{"role": "function", "content": "a"}]}',
            "messages[0].role",
            "assistant or developer or system or tool or user",
        ),
        (b'{"messages": [], "tools": [{"type": "custom"}]}', "tools[0].type", "function"),
        (
            b'{"messages": [], "response_format": {"type": "xml"}}',
            "response_format.type",
            "json_object or json_schema or text",
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
