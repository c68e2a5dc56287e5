"""The clients of `soak_faults.py`: those that ask, and those that do wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from quire.bench.serving.http_client import ConnectionLostError, HTTPClient, HTTPStatusError, events
from quire.bench.serving.workload import text_prompts
from quire.core import sampling_params as limits
from quire.server.openai.protocol import MAX_MESSAGES, MAX_SEQUENCES

PROMPTS = 16
REFUSALS = (429, 503)
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
MALFORMED = [
    b'{"prompt": "a',
    b'{"prompt": "a", "temprature": 1}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": [1, 99999999]}',
    b'{"prompt": "a", "guided_grammar": "root ::= ((("}',
    b"[" * 100_000,
    b"\xff\xfe",
]


FIELDS: dict[str, tuple[Any, int]] = {
    "prompt": ("a", MAX_SEQUENCES // 64),
    "stop": ("0123456789abcdef", limits.MAX_STOP_STRINGS),
    "stop_token_ids": (1, limits.MAX_STOP_TOKEN_IDS),
    "bad_words": ("0123456789abcdef", limits.MAX_BAD_WORDS),
    "allowed_token_ids": (1, 3000),
    "guided_choice": ("{:015x}", 14_000),
    "messages": ({"role": "user", "content": ""}, MAX_MESSAGES),
}
"""An entry of each list that a request may carry, and how many are served.

An entry that is a format makes each one differ: equal choices are one.
"""
OF_PROMPT = ("prompt", "messages")
"""Those that may make a prompt longer than the model's context."""
TOO_MANY = 5_000_000
"""Entries that every list refuses; those that are objects, by a hundredth of it."""


@dataclass
class Result:
    """What has happened so far.

    Attributes:
        phase: of the soak; see `soak_faults`.
        strange: what was not expected.
        seconds: of answers, from the request to the last event, by phase and kind of client.
    """

    phase: str = "quiet"
    counts: Counter[str] = field(default_factory=Counter)
    strange: Counter[str] = field(default_factory=Counter)
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))


def differences(expected: list[int], said: list[int], *, whole: bool) -> tuple[int, int]:
    """How many tokens are missing of what was expected, and how many are said beyond it.

    Args:
        whole: else what is missing at the end was not said yet, and is not lost.
    """
    changes = SequenceMatcher(None, expected, said, autojunk=False).get_opcodes()
    if not whole and changes and changes[-1][0] == "delete":
        changes.pop()
    changes = [change for change in changes if change[0] != "equal"]
    return sum(c[2] - c[1] for c in changes), sum(c[4] - c[3] for c in changes)


class Load:
    """Clients that ask again as soon as they are answered."""

    def __init__(self, url: str, result: Result) -> None:
        self.url = url
        self.result = result
        self.bodies: list[dict[str, Any]] = [
            {
                "prompt": prompt,
                "max_tokens": 8 + 8 * (i % 8),
                "temperature": i % 2,
                "seed": i,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            for i, prompt in enumerate(text_prompts(PROMPTS, 24, [0]))
        ]
        self.expected: list[tuple[list[int], str]] = []

    async def learn(self) -> None:
        """Every prompt's answer. A structure is asked for, too: the first one starts a process."""
        self.expected = await self.answers()
        client = HTTPClient(self.url)
        body = {"prompt": "a", "max_tokens": 4, "structured_outputs": {"choice": ["yes", "no"]}}
        await client.json("POST", "/v1/completions", body)
        await client.close()

    async def answers(self) -> list[tuple[list[int], str]]:
        """Tokens and text that every prompt is answered, one after the other."""
        client = HTTPClient(self.url)
        answers = [await client.json("POST", "/v1/completions", body) for body in self.bodies]
        await client.close()
        return [(a["choices"][0]["token_ids"], a["choices"][0]["text"]) for a in answers]

    async def ask(self, until: float, seed: int) -> None:
        """One client, until this moment."""
        draw = random.Random(seed)
        client = HTTPClient(self.url)
        while (begin := time.monotonic()) < until:
            number = draw.randrange(PROMPTS)
            stream = draw.random() < 0.7
            body = {**self.bodies[number], "stream": stream}
            self.result.counts["requests"] += 1
            try:
                pieces = await client.exchange("POST", "/v1/completions", body)
                if stream:
                    self.judge([data for _, data in events(pieces)], number)
                else:
                    raw = b"".join(data for _, data in pieces).decode(errors="replace")
                    self.judge_whole(raw, number)
            except HTTPStatusError as error:
                self.refused(error.status)
                await asyncio.sleep(draw.uniform(0.05, 0.2))
            except (ConnectionLostError, OSError):
                self.result.counts["broken"] += 1
            else:
                kind = "stream" if stream else "whole"
                self.result.seconds[self.result.phase, kind].append(time.monotonic() - begin)
        await client.close()

    def judge(self, said: list[str], number: int) -> None:
        """Hold a stream's events against what this prompt is answered."""
        messages = [json.loads(data) for data in said if data != "[DONE]"]
        choices = [m["choices"][0] for m in messages if m.get("choices")]
        tokens = [token for choice in choices for token in choice.get("token_ids") or ()]
        text = "".join(choice["text"] for choice in choices)
        interrupted = any("error" in message for message in messages)
        ended = bool(said) and said[-1] == "[DONE]"
        outcome = "broken" if not ended else "interrupted" if interrupted else "whole"
        self._count(outcome, number, tokens, text)

    def judge_whole(self, raw: str, number: int) -> None:
        """Hold an answer that is not streamed against what this prompt is answered."""
        status = int(raw.split(" ", 2)[1])
        if status != 200:
            self.refused(status)
            return
        [choice] = json.loads(raw[raw.index("{") : raw.rindex("}") + 1])["choices"]
        self._count("whole", number, choice["token_ids"], choice["text"])

    def refused(self, status: int) -> None:
        if status in REFUSALS:
            self.result.counts["refused"] += 1
        else:
            self.result.strange[f"HTTP {status}"] += 1

    def _count(self, outcome: str, number: int, tokens: list[int], text: str) -> None:
        expected, spelled = self.expected[number]
        lost, repeated = differences(expected, tokens, whole=outcome != "interrupted")
        self.result.counts.update({outcome: 1, "lost": lost, "duplicated": repeated})
        if not (text == spelled if outcome == "whole" else spelled.startswith(text)):
            self.result.strange["another text"] += 1


class RudeClients:
    """Each method is a client that does one kind of wrong, once."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.result = load.result

    async def run(self, until: float, seed: int) -> None:
        """Do wrong in turns until this moment."""
        draw = random.Random(seed)
        kinds = itertools.cycle(
            (
                self.leave,
                self.abandon_text,
                self.read_slowly,
                self.fill_list,
                self.send_nonsense,
                self.abandon_schema,
                self.break_off,
                self.overfill_list,
            )
        )
        while time.monotonic() < until:
            await asyncio.sleep(draw.uniform(0.2, 0.6))
            kind = next(kinds)
            try:
                await kind(draw)
            except OSError as error:
                self.result.strange[f"{kind.__name__}: {error!r}"] += 1

    async def leave(self, draw: random.Random) -> None:
        """Leave a stream after its first bytes."""
        reader, writer = await self._send(self._request(draw.randrange(PROMPTS), stream=True))
        await reader.read(draw.choice([1, 300, 2000]))
        self._drop(writer, "left")

    async def read_slowly(self, draw: random.Random) -> None:
        """Read a stream in small pieces; all of it must come nevertheless."""
        number = draw.randrange(PROMPTS)
        reader, writer = await self._send(self._request(number, stream=True))
        data = await reader.readline()
        status = int(data.split()[1])
        if status == 200:
            while not data.endswith(b"0\r\n\r\n") and (piece := await reader.read(200)):
                data += piece
                await asyncio.sleep(0.02)
            self.load.judge([said for _, said in events([(0.0, data)])], number)
        else:
            self.load.refused(status)
        self._drop(writer, "read_slowly")

    async def send_nonsense(self, draw: random.Random) -> None:
        """Send what is no request; it must be refused."""
        body = draw.choice(MALFORMED)
        reader, writer = await self._send(
            HEAD.encode(), b"Content-Length: %d\r\n\r\n" % len(body), body
        )
        status = int((await reader.readline()).split()[1])
        if not (400 <= status < 500 or status == 503):
            self.result.strange[f"HTTP {status} for {body[:50]!r}"] += 1
        self._drop(writer, "malformed")

    async def break_off(self, draw: random.Random) -> None:
        """Announce a megabyte, and leave after a part of it."""
        part = b'{"prompt": "' + b"a" * draw.randrange(200_000)
        _, writer = await self._send(HEAD.encode(), b"Content-Length: 1000000\r\n\r\n", part)
        self._drop(writer, "broken_off")

    async def abandon_text(self, draw: random.Random) -> None:
        """Leave while a megabyte is rendered and tokenized."""
        content = "once upon a time " * draw.randrange(30_000, 60_000)
        path = draw.choice(["/tokenize", "/v1/chat/completions"])
        await self._abandon(draw, path, {"messages": [{"role": "user", "content": content}]})

    async def abandon_schema(self, draw: random.Random) -> None:
        """Leave while a schema that nobody else has is checked."""
        pattern = f"(a|b{draw.random()})*c{{1,500}}"
        body = {"prompt": "a", "guided_json": {"type": "string", "pattern": pattern}}
        await self._abandon(draw, "/v1/completions", body)

    async def fill_list(self, draw: random.Random) -> None:
        """Send one list as long as it may be. It is served, or its prompt is too long."""
        await self._send_list(draw.choice(list(FIELDS)), beyond=False)

    async def overfill_list(self, draw: random.Random) -> None:
        """Send one list that is far too long; it must be refused."""
        await self._send_list(draw.choice(list(FIELDS)), beyond=True)

    async def _abandon(self, draw: random.Random, path: str, fields: dict[str, Any]) -> None:
        _, writer = await self._send(_post(path, fields))
        await asyncio.sleep(draw.uniform(0.0, 0.1))
        self._drop(writer, "abandoned")

    async def _send_list(self, name: str, *, beyond: bool) -> None:
        reader, writer = await self._send(_with_list(name, beyond=beyond))
        status = int((await reader.readline()).split()[1])
        served = (200, 400) if name in OF_PROMPT else (200,)
        if status not in (*REFUSALS, *((400,) if beyond else served)):
            self.result.strange[f"HTTP {status} for {name}, {beyond=}"] += 1
        self._drop(writer, "overfilled" if beyond else "filled")

    def _request(self, number: int, *, stream: bool) -> bytes:
        return _post("/v1/completions", {**self.load.bodies[number], "stream": stream})

    async def _send(self, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(self.load.url)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (url.hostname, url.port))
        reader, writer = await asyncio.open_connection(sock=client, limit=1024)
        writer.write(b"".join(parts))
        return reader, writer

    def _drop(self, writer: asyncio.StreamWriter, kind: str) -> None:
        writer.transport.abort()
        self.result.counts[kind] += 1


def _post(path: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = HEAD.replace("/v1/completions", path)
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@cache
def _with_list(name: str, *, beyond: bool) -> bytes:
    """A short request whose list is at its limit, or far beyond it."""
    entry, count = FIELDS[name]
    if beyond:
        count = TOO_MANY if isinstance(entry, int) else TOO_MANY // 100
    differ = isinstance(entry, str) and "{" in entry
    entries = [entry.format(i) for i in range(count)] if differ else [entry] * count
    fields = {"max_tokens": 2, name: entries}
    if name == "messages":
        return _post("/v1/chat/completions", fields)
    return _post("/v1/completions", {"prompt": "a", **fields})
