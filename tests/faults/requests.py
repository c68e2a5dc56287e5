"""What must hold after every fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from tests.e2e.serving import Server

EXTREMES = [
    *("0", "-1", "9223372036854775808", "1180591620717411303424", "1e308", "5e-324", "1e999"),
    *('""', '"\\u0000"', '"\\ud800"', "true", "[]", '[""]', "[null]", '{"1":1e308}'),
    '{"a":{"b":[1180591620717411303424]}}',
]
"""JSON of values that hardly any field has."""


def extremes(body: dict[str, Any], name: str) -> Iterator[str]:
    """Yield the JSON of a body with each extreme as the field `name`."""
    for text in EXTREMES:
        yield json.dumps({**body, name: "@"}).replace('"@"', text)


def assert_refused(response: httpx.Response, param: str | None, *words: str) -> None:
    """A 400 of OpenAI's shape that names `param` and holds `words`, and no secret."""
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    for word in words:
        assert word in error["message"]
    assert_no_secret(response.text)


def assert_no_secret(text: str) -> None:
    for secret in ("Traceback", ".py", "/tmp", "0x", "/home", "site-packages"):
        assert secret not in text


def assert_unharmed(server: Server, canary: str) -> None:
    """The server is alive, idle, and says what it has always said."""
    assert server.http.get("/health").status_code == 200
    assert server.text() == canary
    server.wait_until_idle()
