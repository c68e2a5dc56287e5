"""What a body holds is counted the same however it arrives."""

from __future__ import annotations

import json

import pytest

from quire.server import counts
from quire.server.counts import BodyCounter, field_at_end

MOST = dict.fromkeys(counts.MOST, 2**30)
WIDE = "bytes of strings that are not ASCII"


def refusal(body: bytes, size: int) -> str | None:
    """The first refusal of a body that arrives in parts of `size` bytes."""
    counter = BodyCounter()
    parts = (body[start : start + size] for start in range(0, len(body), size))
    return next((str(error) for part in parts if (error := counter.add(part))), None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        ('{"a": "bcd"}', 0),
        ('{"a": "bü", "cde": "f"}', 3),
        ('{"ü": "abc"}', 2),
        ('{"a": "ü", "b": "ccü"}', 6),
        ('{"a": "' + "a" * 50 + 'ü"}', 52),
        ('{"a": "ü' + "a" * 50 + '"}', 52),
        (json.dumps({"a": "bü"}), 7),
    ],
)
def test_bytes_of_strings_that_are_not_ascii(
    body: str, count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = body.encode()
    monkeypatch.setattr(counts, "MOST", MOST | {WIDE: count})
    assert refusal(data, size) is None
    if count:
        monkeypatch.setattr(counts, "MOST", MOST | {WIDE: count - 1})
        assert f"more than {count - 1} {WIDE}" in str(refusal(data, size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_escape_sequences(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = rb'{"a": "\n\\\"\u00fc", "b": "\\"}'
    for most, refused in ((5, False), (4, True)):
        monkeypatch.setattr(counts, "MOST", MOST | {"escape sequences": most})
        assert (refusal(body, size) is not None) == refused


def test_shares_of_all_limits_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MOST", MOST | {"values": 10, "strings": 10})
    assert refusal(json.dumps([1] * 10).encode(), 1000) is None
    assert refusal(json.dumps(["a"] * 6).encode(), 1000) is None  # 5 commas and 6 strings
    told = refusal(json.dumps(["a"] * 7).encode(), 1000)
    assert "6 values, 7 strings" in told


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"a": {"b": [1, {"c": "d"}', "a"),
        ('{"a": {"b": [1]}, "e" : [1', "e"),
        ('{"a": "b", "e": "\\"x\\\\", "f": "\\"g\\": ', "f"),
        ('{"a": 1, "b', "a"),
        ('[{"a": 1', None),
        ('{"two words": 1', None),
        ("", None),
    ],
)
async def test_the_field_in_which_a_body_breaks_off(body: str, field: str | None) -> None:
    assert await field_at_end(body.encode()) == field
