"""Answers told in every way: `python -m tests.fuzz.streams`.

Over HTTP, a request gets the same answer whole and alone in a plain engine, and streamed beside
others in one whose features are combined at random, to a client that may read slowly.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h11

from quire.core.errors import ConfigError
from quire.executor.choice import make_executor
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.engine import engine_args, load_tokenizer, resolve
from quire.server.app import create_app
from quire.server.http.protocol import HttpProtocol, Site
from quire.server.options import AppOptions
from quire.server.tools.table import REASONING_PARSERS, TOOL_PARSERS
from quire.system.hardware import detect
from tests.fuzz.asked import STRUCTURES, some
from tests.fuzz.combinations import PLAIN
from tests.fuzz.engines import drafting_by, draw_world, write_model
from tests.fuzz.http import Wire
from tests.fuzz.told import Body, told
from tests.unit.server.fake_engine import LoopClient

PATIENCE = 60.0
CONTEXT = 512
LETTERS = "abcdefgh é😀\n"
STEMS = ("", "abc" * 24, "hello é " * 6)
TOOLS: list[Body] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 3}},
                "required": ["a"],
            },
        },
    }
    for name in ("f", "g")
]


class SlowWire(Wire):
    """A socket whose other end does not always read."""

    def __init__(self, protocol: HttpProtocol, random: Random) -> None:
        super().__init__(protocol)
        self._random = random

    def get_write_buffer_size(self) -> int:
        return 2**20 if self._random.random() < 0.5 else 0


class Server:
    """An engine in this event loop, and its application."""

    def __init__(self, engine: AsyncLLM, client: LoopClient, options: AppOptions) -> None:
        self.engine, self.client = engine, client
        self._protocol = partial(HttpProtocol, Site(create_app(engine, ["m"], options)))

    async def post(
        self, path: str, body: Body, turns: int = 0, slow: Random | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a request that comes so many turns of the loop later."""
        for _ in range(turns):
            await asyncio.sleep(0)
        protocol = self._protocol()
        wire = Wire(protocol) if slow is None else SlowWire(protocol, slow)
        protocol.connection_made(wire)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        protocol.data_received(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        async with asyncio.timeout(PATIENCE):
            while not (wire.is_closing() or protocol.asks_nothing):  # noqa: ASYNC110
                await asyncio.sleep(0)
        wire.close()
        return _read(bytes(wire.sent))


@asynccontextmanager
async def serving(model: str, flags: dict[str, Any], options: AppOptions) -> AsyncIterator[Server]:
    args = engine_args(model, {"generation_config": "vllm", "tokenizer_pool_size": 0, **flags})
    resolved = resolve(args, detect())
    client = LoopClient(0.0, lambda: make_executor(resolved.config))  # type: ignore[arg-type]
    engine = AsyncLLM(resolved, load_tokenizer(resolved), args, lambda: client)
    await engine.start_core()
    try:
        yield Server(engine, client, options)
    finally:
        engine.shutdown()
        client.core.shutdown()


def _read(answer: bytes) -> tuple[int, bytes]:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(answer)
    status, body = 0, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA, "the answer is cut short"
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return status, body


def streamed(path: str) -> Body:
    """Return the fields that ask for a stream."""
    counts = {"stream_options": {"include_usage": True}} if "completions" in path else {}
    return {"stream": True, **counts}


def draw_request(random: Random) -> tuple[str, Body]:
    """A path, and what to send there."""
    tail = "".join(random.choices(LETTERS, k=random.choice([1, 5, 30, 80])))
    text = random.choice(STEMS) + tail
    most = random.choice([1, 2, 7, 20, 40])
    body: Body = {"model": "m", "max_tokens": most, "seed": random.randrange(1000)}
    body["temperature"] = random.choice([0, 0.8, 2.0])
    optional: dict[str, list[Any]] = {
        "n": [2, 3], "prompt_logprobs": [0, 2], "return_token_ids": [True], "cache_salt": ["s"],
        "stop": [["a", "e"], "\n", ["é", "ab"]], "include_stop_str_in_output": [True],
        "stop_token_ids": [random.choices(range(300), k=40)], "ignore_eos": [True],
        "min_tokens": [random.randint(1, most)], "repetition_penalty": [1.3], "priority": [0, 3],
    }  # fmt: skip
    body |= {k: random.choice(v) for k, v in optional.items() if random.random() < 0.25}
    if random.random() < 0.1 and "min_tokens" not in body:
        body["structured_outputs"] = random.choice(STRUCTURES)
    if random.random() < 0.4:
        body["messages"] = [{"role": "user", "content": text}]
        if random.random() < 0.4:
            body |= {"logprobs": True, "top_logprobs": random.choice([0, 1, 5])}
        return "/v1/chat/completions", body
    ids = [random.randrange(256) for _ in range(random.choice([1, 2, 40]))]
    body["prompt"] = random.choice([text, [text, text[: 1 + len(text) // 2]], ids])
    body |= {"echo": random.random() < 0.3}
    if random.random() < 0.4:
        body["logprobs"] = random.choice([0, 1, 4])
    return "/v1/completions", body


def further(random: Random, path: str, body: Body) -> tuple[str, Body]:
    """Change a request: more of sampling, tools, reasoning, and the other APIs."""
    choices: dict[str, list[Any]] = {
        "top_k": [5], "min_p": [0.05], "presence_penalty": [0.8], "frequency_penalty": [-0.7],
        "bad_words": [["a", "ab"]], "logit_bias": [dict.fromkeys(("97", "101", "257"), 4.0)],
        "skip_special_tokens": [False], "logprob_token_ids": [[5, 97]],
        "truncate_prompt_tokens": [7, -1],
    }  # fmt: skip
    body |= some(random, 0.1, choices)
    if path != "/v1/chat/completions":
        return path, body
    if random.random() < 0.4:
        body |= {"tools": TOOLS, "max_tokens": max(body["max_tokens"], 30)}
        named = {"type": "function", "function": {"name": "g"}}
        body["tool_choice"] = random.choice(["auto", "required", "required", named, "none"])
        body |= some(random, 0.2, {"parallel_tool_calls": [False]})
        for name in ("structured_outputs", "min_tokens", "stop", "stop_token_ids"):
            if random.random() < 0.8:
                body.pop(name, None)
    if random.random() < 0.25:
        body["thinking_token_budget"] = random.choice([0, 3, 9])
    if random.random() < 0.5:
        return path, body
    return random.choice((_as_response, _as_message))(body)


def _as_response(body: Body) -> tuple[str, Body]:
    dropped = (*("n", "prompt_logprobs", "return_token_ids", "messages", "max_tokens", "logprobs"),
               "tools", "tool_choice", "thinking_token_budget", "logprob_token_ids",
               "truncate_prompt_tokens")  # fmt: skip
    made = {k: v for k, v in body.items() if k not in dropped}
    made |= {"input": body["messages"], "max_output_tokens": body["max_tokens"]}
    if body.get("logprobs"):
        made["include"] = ["message.output_text.logprobs"]
    else:
        made.pop("top_logprobs", None)
    if "tools" in body:
        made["tools"] = [{"type": "function", "strict": None, **t["function"]} for t in TOOLS]
        choice = body["tool_choice"]
        made["tool_choice"] = (
            choice if isinstance(choice, str) else {"type": "function", "name": "g"}
        )
    return "/v1/responses", made


def _as_message(body: Body) -> tuple[str, Body]:
    made: Body = {"model": body["model"], "max_tokens": body["max_tokens"], "temperature": 0}
    made["messages"] = body["messages"]
    if stop := body.get("stop"):
        made["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if "tools" in body:
        made["tools"] = [
            {"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
            for t in TOOLS
        ]
        kinds = {"auto": "auto", "required": "any", "none": "none"}
        choice = body["tool_choice"]
        made["tool_choice"] = (
            {"type": kinds[choice]} if isinstance(choice, str) else {"type": "tool", "name": "g"}
        )
    if "thinking_token_budget" in body:
        budget = body["thinking_token_budget"]
        made["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return "/v1/messages", made


async def try_world(random: Random) -> None:
    """Raises AssertionError where an answer is another one."""
    world = draw_world(random)
    numbers = {**world.numbers, "max_model_len": CONTEXT}
    flags = {k: v for k, v in world.flags.items() if "lora" not in k and "dir" not in k}
    blocks = CONTEXT // flags["block_size"]
    flags["num_gpu_blocks_override"] = blocks + random.choice([0, 2, 300])
    asked = [draw_request(random) for _ in range(random.randint(2, 7))]
    slow = random if random.random() < 0.3 else None
    more = Random(random.random())
    asked = [further(more, *each) for each in asked]
    options = AppOptions(
        tool_call_parser=more.choice(list(TOOL_PARSERS)),
        reasoning_parser=more.choice(list(REASONING_PARSERS)),
    )
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "m", world.model)
        if model != world.model:
            numbers["load_format"] = "dummy"
        async with serving(model, numbers | PLAIN, options) as server:
            expected = [await server.post(path, body) for path, body in asked]
        async with serving(model, drafting_by(model, numbers | flags), options) as server:
            streams = [random.random() < 0.7 for _ in asked]
            sent = [
                server.post(
                    path,
                    {**body, **streamed(path)} if stream else body,
                    random.choice([0, 3, 50]),
                    slow,
                )
                for (path, body), stream in zip(asked, streams, strict=True)
            ]
            got = await asyncio.gather(*sent)
            while server.client.core.has_work():  # noqa: ASYNC110
                await asyncio.sleep(0)
            server.client.core.scheduler.check_integrity()
            assert server.client.core.scheduler.kv.pool.num_used == 0, "blocks are left"
    for request, stream, (status, data), (wanted, whole) in zip(
        asked, streams, got, expected, strict=True
    ):
        if status == 200 and wanted == 400 and stream:  # found when the stream had begun
            assert json.loads(whole)["error"]["message"] in data.decode(), f"{request}: {data!r}"
            assert b"server_error" not in data, f"{request}: {data!r}"
            continue
        assert status == wanted, f"{request}: {status} is not {wanted}: {data!r}"
        if status == 200:
            path = request[0]
            one, other = told(path, data, streamed=stream), told(path, whole, streamed=False)
            assert one == other, f"{request}, stream {stream}:\n{one}\nis not\n{other}"


def case(random: Random) -> str:
    """One world; how it went."""
    try:
        asyncio.run(try_world(random))
    except ConfigError as error:
        return f"refused: {error.param}"
    return "served"


if __name__ == "__main__":
    from tests.fuzz.replay import main

    logging.disable(logging.CRITICAL)
    sys.exit(main("tests.fuzz.streams", case, 150))
