"""Quire's server with a model that is capable: `python -m tests.clients.capable LOG serve MODEL …`.

Each request to an API becomes a line of the file LOG.

All of it is real but for the model's choice of words. `script` says what a capable model would
answer, and a structure with that one choice makes the model write it. What a client's own tests
then find is the server's fault, never the model's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.cli.main import main
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.async_llm import AsyncLLM
from quire.server import serve
from tests.clients.asks import ask_of
from tests.clients.hasty_model import write_hasty_model
from tests.clients.script import Ask, Reply, reply
from tests.e2e.serving import Server, serving

LOG = "requests.jsonl"
HEADERS = ("anthropic-version", "anthropic-beta", "openai-beta")
"""Those that say what a client speaks."""
_words: ContextVar[str | None] = ContextVar("words", default=None)
"""What the model writes for the request that this context serves."""
_ID = re.compile(rb'"id": ?"([^"]+)"')


class Prompter:
    """Reads and logs each request, and has the script say what the model writes for it.

    It answers those for embeddings itself, which the model cannot.
    """

    def __init__(self, app: ASGIApp, log: Path) -> None:
        self._app, self._log = app, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        row = _row(request, body)
        _words.set(_written(scope["path"], row["body"]))
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        async def logged(message: Message) -> None:
            if row and message.get("body"):  # the beginning of the answer
                if scope["method"] == "POST" and (found := _ID.search(message["body"])):
                    row["answered_as"] = found[1].decode()
                with self._log.open("a") as file:
                    print(json.dumps(row), file=file)
                row.clear()
            await send(message)

        app = _embeddings(row["body"]) if scope["path"].endswith("/embeddings") else self._app
        await app(scope, replayed, logged)


def _row(request: Request, body: bytes) -> dict[str, Any]:
    query = f"?{request.url.query}" if request.url.query else ""
    headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
    try:
        given = json.loads(body) if body else None
    except ValueError:
        given = body.decode(errors="replace")  # the server says what is wrong with it
    path = request.url.path + query
    return {"method": request.method, "path": path, "headers": headers, "body": given}


def _embeddings(body: dict[str, Any]) -> ASGIApp:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [
        {"object": "embedding", "index": index, "embedding": [0.5, 0.25]}
        for index, _ in enumerate(texts)
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return JSONResponse({"object": "list", "data": data, "model": "tiny", "usage": usage})


def _written(path: str, body: Any) -> str | None:
    try:
        ask = ask_of(path, body)
    except (KeyError, TypeError, AttributeError):
        return None  # the server says what is wrong with it
    return None if ask is None else in_format(ask, reply(ask))


def in_format(ask: Ask, found: Reply) -> str:
    """Return the reply as the model has to write it, so that the server reads what is meant."""
    if found.call is None:
        return found.text
    if ask.forced == found.call.name:
        return found.arguments
    name = json.dumps(found.call.name)
    if ask.forced is not None:
        return f'[{{"name": {name}, "parameters": {found.arguments}}}]'
    call = f'{{"name": {name}, "arguments": {found.arguments}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


@contextmanager
def capable(folder: Path) -> Iterator[Server]:
    """Serve a capable model until the end of the block; its files and `LOG` go into `folder`."""
    model = write_hasty_model(folder / "model")
    program = [sys.executable, "-m", "tests.clients.capable", str(folder / LOG)]
    with serving(model, "--tool-call-parser", "hermes", program=program) as server:
        yield server


def run(log: Path, words: list[str]) -> int:
    """Run Quire's command, whose server has the script choose the model's words."""
    create_app, submit = serve.create_app, AsyncLLM.submit

    def capable_app(*args: Any, **options: Any) -> Any:
        app = create_app(*args, **options)
        app.add_middleware(Prompter, log=log)
        return app

    async def submit_words(
        engine: AsyncLLM, prompt: Any, params: Any, *args: Any, **fields: Any
    ) -> None:
        text = _words.get()
        if text is not None and isinstance(params, SamplingParams):
            if params.structured_outputs is not None:  # what the client asked for is replaced
                await engine.check_structure(params.structured_outputs)
            room = max(params.max_tokens or 0, len(text) + 1)  # its tokens are single characters
            choice = StructuredOutputsParams(choice=[text])
            params = params.replace(structured_outputs=choice, max_tokens=room)
        await submit(engine, prompt, params, *args, **fields)

    serve.create_app = capable_app
    AsyncLLM.submit = submit_words  # type: ignore[method-assign]
    return main(words)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
