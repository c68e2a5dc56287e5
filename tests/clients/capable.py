"""Quire's server with a model that is capable: `python -m tests.clients.capable serve MODEL …`.

All of it is real but for the model's choice of words. `script` says what a capable model would
answer, and a structure with that one choice makes the model write it. What a client's own tests
then find is the server's fault, never the model's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.cli.main import main
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.async_llm import AsyncLLM
from quire.server import serve
from tests.clients.hasty_model import write_hasty_model
from tests.clients.script import Ask, Reply, reply
from tests.clients.scripted import ask_of
from tests.e2e.serving import Server, serving

_words: ContextVar[str | None] = ContextVar("words", default=None)
"""What the model writes for the request that this context serves."""


class Prompter:
    """Reads each request, and has the script say what the model writes for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        _words.set(_written(scope["path"], body))
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replayed, send)


def _written(path: str, body: bytes) -> str | None:
    try:
        ask = ask_of(path, json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError):
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
    """Serve a capable model, whose files go into `folder`, until the end of the block."""
    model = write_hasty_model(folder / "model")
    program = [sys.executable, "-m", "tests.clients.capable"]
    with serving(model, "--tool-call-parser", "hermes", program=program) as server:
        yield server


def run(words: list[str]) -> int:
    """Run Quire's command, whose server has the script choose the model's words."""
    create_app, submit = serve.create_app, AsyncLLM.submit

    def capable_app(*args: Any, **options: Any) -> Any:
        app = create_app(*args, **options)
        app.add_middleware(Prompter)
        return app

    async def submit_words(
        engine: AsyncLLM, prompt: Any, params: Any, *args: Any, **fields: Any
    ) -> None:
        text = _words.get()
        if text is not None and isinstance(params, SamplingParams):
            if params.structured_outputs is not None:  # what the client asked for is replaced
                await engine.check_structure(params.structured_outputs)
            params = params.replace(structured_outputs=StructuredOutputsParams(choice=[text]))
        await submit(engine, prompt, params, *args, **fields)

    serve.create_app = capable_app
    AsyncLLM.submit = submit_words  # type: ignore[method-assign]
    return main(words)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
