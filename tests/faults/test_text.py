"""Rows 13, 20 to 29 and 57: what a prompt, a template or a grammar can do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from quire.core.errors import InvalidRequestError
from quire.text.template import render_template
from tests.e2e.serving import Server
from tests.e2e.tiny_model import BOS, EOS
from tests.faults.requests import assert_no_secret, assert_refused

MESSAGES = [{"role": "user", "content": "a"}]


pytestmark = pytest.mark.usefixtures("unharmed")


def chat(server: Server, **fields: Any) -> Any:
    body = {"messages": MESSAGES, "max_tokens": 2, "temperature": 0, **fields}
    return server.http.post("/v1/chat/completions", json=body)


def test_row_13_a_long_prompt_is_tokenized_beside_the_event_loop(
    server: Server, unharmed: str
) -> None:
    """The pool's process has it: others are served their whole answer meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.complete, prompt="a" * 2_000_000)
        answered = 0
        while not long.done():
            assert server.text() == unharmed
            answered += 1
    assert_refused(long.result(), "prompt", "too long", "512")
    assert answered


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def json_schema(schema: Any) -> dict[str, Any]:
    described = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


@pytest.mark.parametrize(
    "fields",
    [
        json_schema(nested(200)),
        json_schema({"type": "nonsense"}),
        json_schema({"$ref": "#/nowhere"}),
        json_schema({"$ref": "http://127.0.0.1:1/schema.json"}),
        {"guided_grammar": "root ::= nothing here"},
    ],
    ids=["deep", "no type", "no target", "remote", "grammar"],
)
def test_row_20_bad_schemas_and_grammars(server: Server, fields: dict[str, Any]) -> None:
    response = chat(server, **fields)
    assert response.status_code == 400, response.text
    assert_no_secret(response.text)


@pytest.mark.parametrize("regex", ["(a*)*" * 50 + "(", "a{100000}{100000}", r"(?<=a)b\1"])
def test_row_21_pathological_regexes(server: Server, regex: str) -> None:
    """Refused, or followed at no more cost than any other."""
    response = chat(server, guided_regex=regex)
    assert response.status_code == (200 if regex.startswith("a{") else 400), response.text
    assert_no_secret(response.text)


def test_row_22_a_grammar_of_60_000_parentheses(server: Server) -> None:
    response = chat(server, guided_grammar="root ::= " + "(" * 60_000)
    assert response.status_code == 400, response.text[:500]
    assert len(response.content) < 6000


def test_row_23_a_clients_template(server: Server) -> None:
    assert_refused(chat(server, chat_template="{{ 1 }}"), "chat_template")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "raise_exception"])
def test_row_24_kwargs_that_override(server: Server, name: str) -> None:
    kwargs = {name: None}
    assert_refused(chat(server, chat_template_kwargs=kwargs), "chat_template_kwargs", name)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''['__cla' ~ 'ss__'] }}",
        "{{ ''|attr('__class__') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 300000000 }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    ],
)
def test_rows_25_and_26_templates_that_reach_or_grow(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render_template(source, {"messages": MESSAGES})
    assert_no_secret(str(caught.value))


def test_row_27_special_tokens_in_a_users_text(server: Server) -> None:
    """They are spelled out: as many tokens as characters, and no end of the sequence."""
    plain = chat(server, messages=[{"role": "user", "content": "x" * len(BOS + EOS)}])
    special = chat(server, messages=[{"role": "user", "content": BOS + EOS}])
    tokens = [r.json()["usage"]["prompt_tokens"] for r in (plain, special)]
    assert tokens[0] == tokens[1]


def byte_token(byte: int) -> int:
    """The tiny model's token of a byte that its alphabet spells as itself."""
    return sorted(ByteLevel.alphabet()).index(chr(byte))


def test_row_28_prompt_ids_within_a_character(server: Server) -> None:
    """The answer says the character that it completes, and nothing of what was before."""
    first, second = (byte_token(byte) for byte in "é".encode())
    forced = {"logit_bias": {str(second): 100}, "max_tokens": 1, "ignore_eos": True}
    assert server.text(prompt=[97, first], **forced) == "é"
    assert server.text(prompt=[first, second, 97, first], **forced) == "é"


def test_row_29_invalid_utf8_in_the_output(server: Server) -> None:
    """Forced to say half a character, it says one U+FFFD for it, streamed or not."""
    token = byte_token(0xE2)
    fields = {"logit_bias": {str(token): 100}, "max_tokens": 5, "ignore_eos": True}
    assert server.text(**fields) == "\ufffd" * 5
    with server.http.stream(
        "POST", "/v1/completions", json={"prompt": "a", "stream": True, "temperature": 0, **fields}
    ) as response:
        text = response.read().decode()
    assert text.count("\ufffd") == 5


def test_row_57_another_salt_finds_nothing(server: Server) -> None:
    def cached(salt: str | None) -> int:
        response = server.complete(prompt="salted" * 40, cache_salt=salt)
        details: dict[str, int] = response.json()["usage"]["prompt_tokens_details"]
        return details["cached_tokens"]

    assert cached("mine") == 0
    assert cached("mine") == 224
    assert cached("yours") == 0
    assert cached(None) == 0
