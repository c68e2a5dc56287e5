"""Fuzzed HTTP requests against the whole server: `python -m tests.fuzz.http --count 1000000`.

The connection, the application, the front end, the scheduler and the KV manager are real; the
model spells the alphabet, and the socket is an object. A request is a function of the seed and
its number, so that a failure can be replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import h11
import msgspec

from quire.server.http.protocol import HttpProtocol, Site
from quire.server.openai.protocol import ChatRequest, CompletionRequest
from quire.server.responses.protocol import ResponsesRequest
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.unit.engine.echo import EchoExecutor
from tests.unit.server.fake_engine import Running, running

COMPLETION: dict[str, Any] = {
    "model": "echo", "prompt": "abc", "max_tokens": 3, "temperature": 0, "stop": ["f"], "n": 1,
    "logprobs": 2, "logit_bias": {"97": 1.5}, "seed": 3, "stop_token_ids": [100], "min_tokens": 1,
    "stream": False, "echo": False, "top_p": 0.9, "presence_penalty": 0.1, "ignore_eos": False,
}  # fmt: skip
STREAM = {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}, "n": 2}
BATCH = {"model": "echo", "prompt": [[97, 98], [120]], "max_tokens": 2, "cache_salt": "s"}
CHAT: dict[str, Any] = {
    "model": "echo", "max_tokens": 3, "temperature": 0.5, "top_k": 4, "min_p": 0.1, "user": "me",
    "messages": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ],
    "logprobs": True, "top_logprobs": 2, "chat_template_kwargs": {"x": 1}, "stop": "q",
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = {
    "model": "echo",
    "messages": [{"role": "user", "content": "a"}],
    "max_tokens": 2,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
STRUCTURED = {**BATCH, "structured_outputs": {"structural_tag": TAG, "whitespace_pattern": " "}}
MESSAGE = {
    "model": "echo", "max_tokens": 3, "system": "be short", "stop_sequences": ["q"], "top_k": 2,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"},
}  # fmt: skip
RESPONSE = {
    "model": "echo", "max_output_tokens": 3, "instructions": "be short", "temperature": 0.5,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "2"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}],
    "tool_choice": "auto", "text": {"format": {"type": "text"}}, "store": True, "metadata": {},
}  # fmt: skip
INPUTS = {"model": "echo", "input": ["a", "b"], "encoding_format": "float", "dimensions": 2}
PAIRS = {"model": "echo", "query": "a", "documents": ["a", "b"], "top_n": 1}
TOKENIZE = {"model": "echo", "messages": CHAT["messages"], "return_token_strs": True}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", COMPLETION),
    ("/v1/completions", STREAM),
    ("/v1/completions", BATCH),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/chat/completions", TOOLS),
    ("/v1/completions", STRUCTURED),
    ("/v1/messages", MESSAGE),
    ("/v1/messages", {**MESSAGE, "stream": True, "tools": None, "tool_choice": None}),
    ("/v1/messages/count_tokens", {"model": "echo", "messages": MESSAGE["messages"]}),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", {**RESPONSE, "input": "a", "stream": True}),
    ("/v1/responses", {**RESPONSE, "input": "a", "background": True}),
    ("/v1/responses/input_tokens", {**RESPONSE, "input": "a"}),
    ("/v1/embeddings", INPUTS),
    ("/rerank", PAIRS),
    ("/score", {"model": "echo", "text_1": "a", "text_2": ["a", "b"]}),
    ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}),
    ("/tokenize", TOKENIZE),
    ("/detokenize", {"model": "echo", "tokens": [97, 98]}),
]
FIELDS = sorted(
    {
        field.encode_name
        for kind in (CompletionRequest, ChatRequest, ResponsesRequest)
        for field in msgspec.structs.fields(kind)
    }
)
BARE = [
    "GET /health", "GET /ready", "GET /version", "GET /metrics", "GET /v1/models", "GET /nowhere",
    "GET /v1/models/echo", "GET /openapi.json", "GET /explain?window=0", "GET /load", "GET /",
    "GET /v1/responses/resp_1", "GET /v1/responses/resp_1/input_items?limit=2&order=asc",
    "DELETE /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel", "HEAD /health",
    "GET /dashboard/requests/r1", "OPTIONS /v1/completions", "POST /reset_prefix_cache",
]  # fmt: skip
"""Requests without a body."""
PATIENCE = 60.0
AT_ONCE = 8


class Wire(asyncio.Transport):
    """A socket whose other end reads at once."""

    def __init__(self, protocol: HttpProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = bytearray()
        self._protocol = protocol
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self.sent += data

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool:
        return not self._closed


class Fuzzer:
    """Sends mutated requests to an application.

    Attributes:
        statuses: of all answers.
    """

    def __init__(self, app: Running, seed: int) -> None:
        self.app = app
        self.seed = seed
        self.statuses: Counter[int] = Counter()
        self._site = Site(app.app)
        self._protocol = partial(HttpProtocol, self._site)

    async def run(self, count: int, first: int = 0) -> None:
        """Send so many requests; the engine must be alive and idle after."""
        for start in range(first, first + count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, first + count))
            await asyncio.gather(*map(self.one, numbers))
        await self.check()

    async def one(self, number: int) -> None:
        """The request of this number."""
        random = Random(f"{self.seed}/{number}")
        data = request(random)
        protocol = self._protocol()
        wire = Wire(protocol)
        protocol.connection_made(wire)
        cut = random.randint(0, len(data)) if random.random() < 0.3 else len(data)
        for part in (data[:cut], data[cut:]):
            if part and not wire.is_closing():
                protocol.data_received(part)
                await asyncio.sleep(0)
        incomplete = protocol.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not incomplete and random.random() > 0.05:
            async with asyncio.timeout(PATIENCE):
                while not (wire.is_closing() or protocol.asks_nothing):  # noqa: ASYNC110
                    await asyncio.sleep(0)
        wire.close()
        await asyncio.sleep(0)
        try:
            self.judge(bytes(wire.sent), to_head=data.startswith(b"HEAD "))
        except Exception as error:
            error.add_note(f"replay: python -m tests.fuzz.http --seed {self.seed} --only {number}")
            error.add_note(repr(data[:2000]))
            raise

    def judge(self, answer: bytes, *, to_head: bool) -> None:
        for found in re.finditer(rb"HTTP/1\.1 (\d{3}) ", answer):
            status = int(found[1])
            self.statuses[status] += 1
            assert status < 500, answer[:2000].decode(errors="replace")
        assert b"Traceback" not in answer
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 4") and b"HTTP/1.1" not in body:
            assert b"\r\ncontent-type: application/json" in head.lower(), head.decode()
            assert to_head or json.loads(body)["error"]["message"]

    async def check(self) -> None:
        """Alive, idle, and as right as ever."""
        async with asyncio.timeout(PATIENCE):
            while self._site.tasks or self.app.engine.num_unfinished:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert self.app.engine.is_ready
        answer = await self.app.complete(max_tokens=5)
        assert answer.json()["choices"][0]["text"] == "bcdef"
        scheduler = self.app.core.scheduler
        scheduler.check_integrity()
        assert scheduler.kv.pool.num_used == 0
        assert not self._site.connections


def request(random: Random) -> bytes:
    """A request, mostly wrong somewhere."""
    if random.random() < 0.1:
        raw = f"{random.choice(BARE)} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        return mutate_bytes(random, raw)
    path, body = random.choice(BODIES)
    kind = random.random()
    if kind < 0.65:
        body = mutate_json(random, body, FIELDS)
    encoded = json.dumps(body, ensure_ascii=random.random() < 0.9).encode()
    if 0.65 <= kind < 0.85:
        encoded = mutate_bytes(random, encoded)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: r{random.randrange(9)}\r\nContent-Length: {len(encoded)}\r\n\r\n"
    )
    raw = head.encode() + encoded
    return mutate_bytes(random, raw) if 0.85 <= kind < 0.97 else raw


async def fuzz(count: int, seed: int, first: int = 0) -> Counter[int]:
    """Statuses of `count` requests to a fresh server."""
    async with running(executor=EchoExecutor) as app:
        fuzzer = Fuzzer(app, seed)
        await fuzzer.run(count, first)
        return fuzzer.statuses


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.http", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="send the request of this number")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    count, first = (args.count, 0) if args.only is None else (1, args.only)
    logging.disable()  # of what is wrong with each
    statuses = asyncio.run(fuzz(count, args.seed, first))
    print(f"{count} requests in {time.monotonic() - begin:.0f} s: {dict(statuses)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
