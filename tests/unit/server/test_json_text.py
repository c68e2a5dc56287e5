"""JSON of texts and numbers that JSON cannot hold."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from quire.server.http.json_text import encode, read_object, well_formed


class Told(msgspec.Struct):
    text: str
    raw: msgspec.Raw
    table: dict[Any, Any]
    unset: int | msgspec.UnsetType = msgspec.UNSET


def test_encode_mends_only_what_it_must() -> None:
    sound = Told("é😀", msgspec.Raw(b'{"a": 1.0}'), {1: [2**70]})
    assert encode(sound) == msgspec.json.encode(sound)
    odd = Told("a\ud800\ud83d\ude00", msgspec.Raw(b'{"a": 1.0}'), {"\udfff": (1, math.inf)})
    told = msgspec.json.decode(encode(odd))
    assert told == {"text": "a\ufffd😀", "raw": {"a": 1.0}, "table": {"\ufffd": [1, None]}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": NaN, "b": [-Infinity, 1e999]}', {"a": None, "b": [None, None]}),
        (r'{"\ud800": "\ud83d\ude00\udfff"}', {"\ufffd": "😀\ufffd"}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ('{"a": 1180591620717411303424}', {"a": 2**70}),
        ("[1]", None),
        ("1", None),
        ("{", None),
        ("", None),
        ("\ud800", None),
        ('{"a": %s}' % ("9" * 5000), None),
        ('{"a":' * 200_000 + "1" + "}" * 200_000, None),
    ],
)
def test_read_object(text: str, expected: dict[str, Any] | None) -> None:
    assert read_object(text) == expected


def test_well_formed() -> None:
    assert well_formed("aé😀\0") == "aé😀\0"
    assert well_formed("\ud83d\ude00") == "😀"
    assert well_formed("\ude00\ud83d") == "\ufffd\ufffd"
