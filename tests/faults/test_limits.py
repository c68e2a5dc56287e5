"""Every list of a request is bounded, and none at its limit holds up the loop.

The work of a turn is counted, not timed: it is the same on a slow or busy machine.
`benchmarks/loop_turns.py` measures the same turns in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.events import Handle
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any

import msgspec
import pytest

from quire.frontend.input.intake import INLINE_CHARACTERS
from quire.server.counts import MOST
from quire.server.rules import MAX_SEQUENCES
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.faults.full_requests import BEYOND, COMPLETIONS, FIELDS, ask, completion
from tests.faults.sites import Site

MAX_STEPS = 250_000
"""Steps of one turn. Today's largest, of `prompts`, has 192,596."""
MAX_STEPS_PER_BYTE = 3
"""Steps of a turn that counts what a body holds. Today: two, for a body of many short strings."""
READ_BYTES = 256 * 2**10
"""The most that asyncio reads from a socket at once."""


@dataclass
class Turn:
    """The work of one callback of the loop.

    Attributes:
        steps: lines of Python and rounds of loops, plus calls of C functions.
        decoded: bytes of JSON.
        tokenized: characters.
    """

    steps: int = 0
    decoded: int = 0
    tokenized: int = 0


class Turns:
    """Counts the work of each callback while it is patched in; other threads' does not count."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.all: list[Turn] = []
        self._thread = get_ident()
        self._run = Handle._run
        decode, encode = msgspec.json.decode, DummyTokenizer.encode

        def counted_run(handle: Handle) -> None:
            self._counted(handle)

        def counted_decode(data: Any, **options: Any) -> Any:
            if get_ident() == self._thread:
                self.all[-1].decoded += len(data)
            return decode(data, **options)

        def counted_encode(tokenizer: DummyTokenizer, text: str, **options: Any) -> list[int]:
            if get_ident() == self._thread:
                self.all[-1].tokenized += len(text)
            return encode(tokenizer, text, **options)

        patch.setattr(Handle, "_run", counted_run)
        patch.setattr(msgspec.json, "decode", counted_decode)
        patch.setattr(DummyTokenizer, "encode", counted_encode)

    def largest(self) -> Turn:
        """Return the most of each kind of work, of any turn."""
        return Turn(
            max(turn.steps for turn in self.all),
            max(turn.decoded for turn in self.all),
            max(turn.tokenized for turn in self.all),
        )

    def _counted(self, handle: Handle) -> None:
        turn = Turn()
        self.all.append(turn)

        def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
            turn.steps += event == "line"
            return trace

        def profile(frame: FrameType, event: str, arg: object) -> None:
            turn.steps += event == "c_call"

        sys.settrace(trace)
        sys.setprofile(profile)
        try:
            self._run(handle)
        finally:
            sys.setprofile(None)
            sys.settrace(None)


async def turns_of(
    where: Site, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, Turn]:
    """Send `body`; return the answer's status, and the largest turn until then."""
    await ask(where, path, b'{"model": "no"}')  # the first request imports modules
    with monkeypatch.context() as patch:
        turns = Turns(patch)
        status = await ask(where, path, body)
    return status, turns.largest()


@pytest.mark.parametrize(
    "name",
    [
        # A thousand sequences have thousands of turns; below, an eighth of them.
        pytest.param(name, marks=pytest.mark.slow if name.startswith("prompts") else ())
        for name in FIELDS
    ],
)
async def test_a_field_at_its_limit_leaves_the_loop_free(
    name: str, monkeypatch: pytest.MonkeyPatch, where: Site
) -> None:
    path, fields = FIELDS[name]
    body = json.dumps(fields, ensure_ascii=False).encode()
    status, turn = await turns_of(where, path, body, monkeypatch)
    assert status in (200, 400), status
    assert turn.steps <= MAX_STEPS
    assert turn.decoded < 1.5 * len(body)  # once, and small parts of it once more
    assert turn.tokenized <= INLINE_CHARACTERS
    await where.assert_unharmed()


async def test_work_grows_no_faster_than_the_number_of_prompts(
    monkeypatch: pytest.MonkeyPatch,
    where: Site,
) -> None:
    part = 8
    body = json.dumps(completion(prompt=["a"] * (MAX_SEQUENCES // part), max_tokens=1)).encode()
    status, turn = await turns_of(where, COMPLETIONS, body, monkeypatch)
    assert status == 200
    assert turn.steps <= MAX_STEPS // part
    assert turn.tokenized <= INLINE_CHARACTERS


@pytest.mark.parametrize("name", BEYOND)
async def test_a_field_beyond_its_limit_is_refused_by_name(name: str, where: Site) -> None:
    path, fields, param = BEYOND[name]
    answer = await where.app.http.post(path, json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert any(char.isdigit() for char in error["message"])


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("values", b'{"prompt": [' + b"1," * 5_000_000 + b"1]}"),
        ("values", b'{"a": [' + b"[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0]," * 30_000 + b"1]}"),
        ("strings", b'{"prompt": [' + b'"a",' * 200_000 + b'"a"]}'),
        ("objects and arrays", b'{"prompt": [' + b"[]," * 100_000 + b"[]]}"),
        (
            "bytes of strings that are not ASCII",
            b'{"prompt": "' + b"\\u00fc" * 1_200_000 + b'"}',
        ),
        ("escape sequences", b'{"prompt": "' + b"\\n" * 4_000_000 + b'"}'),
        ("escape sequences", b'{"prompt": "' + b"\\\\" * 4_000_000 + b'"}'),
        (
            "bytes of strings that are not ASCII",
            b'{"prompt": "' + b"a" * (30 * 2**20) + "ü".encode() + b'"}',
        ),
    ],
)
async def test_a_body_with_too_much_in_it(
    what: str, body: bytes, monkeypatch: pytest.MonkeyPatch, where: Site
) -> None:
    status, turn = await turns_of(where, COMPLETIONS, body, monkeypatch)
    assert status == 400
    assert turn.steps <= MAX_STEPS_PER_BYTE * READ_BYTES
    assert turn.decoded == 0
    answer = await where.app.http.post(
        COMPLETIONS, content=body, headers={"Content-Type": "application/json"}
    )
    error = answer.json()["error"]
    assert f"more than {MOST[what]} {what}" in error["message"]
    assert error["param"] == ("a" if b'{"a"' in body else "prompt")
    await where.assert_unharmed()


async def test_text_in_strings_is_not_counted(where: Site) -> None:
    """What stands in strings is no value: a text may be all commas, quotes and brackets."""
    text = ',"[{\\' * 26_000
    answer = await where.app.http.post("/tokenize", json={"prompt": text})
    assert answer.status_code == 200
    assert answer.json()["count"] == len(text)
    pieces = [text[:70_001], text[70_001:99_999], text[99_999:]]
    for cut in (1, 65_535, 65_536, 65_537):
        body = json.dumps({"prompt": "".join(pieces)}).encode()
        client = await where.connect()
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        await client.send(head + b"Content-Length: %d\r\n\r\n" % len(body))
        await client.send(body[:cut])
        await asyncio.sleep(0)
        await client.send(body[cut:])
        assert b" 200 " in await client.answer()
        client.close()
