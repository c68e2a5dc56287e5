"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.body import decode, read_body
from quire.server.connection import open_stream, while_connected
from quire.server.engine import Engine
from quire.server.errors import invalid
from quire.server.openai.generation import UsageCounter, completions, event
from quire.server.openai.logprobs import chat_logprobs, prompt_logprobs
from quire.server.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from quire.server.openai.sampling import chat_params
from quire.server.state import engine_request_id, request_id, server_state
from quire.text.chat import chat_to_token_ids


async def create_chat_completion(request: Request) -> Response:
    """Validate, render, generate, answer; the work ends when the client goes."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), ChatRequest)
    model = server.served_name(body.model)
    engine = server.live_engine()
    params = chat_params(body, engine.default_sampling_params)
    token_ids = await _render(body, engine, server.chat_template)
    call = _Call(f"chatcmpl-{request_id(request)}", model, body, params, token_ids, engine)
    if body.stream:
        return await open_stream(call.stream(), request.receive)
    answer = await while_connected(call.complete(), request.receive)
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _render(body: ChatRequest, engine: Engine, template: str | None) -> list[int]:
    """The conversation as the model's chat template spells it; in a thread, for it may be long.

    Raises:
        QuireError: 400 where it is empty, the template refuses it, or there is no template.
    """
    if not body.messages:
        raise invalid("messages is empty.", "messages")
    add_prompt, resume = body.add_generation_prompt, bool(body.continue_final_message)
    if add_prompt and resume:
        raise invalid(
            "add_generation_prompt and continue_final_message cannot both be true.",
            "continue_final_message",
        )
    if resume and body.messages[-1].role != "assistant":
        raise invalid(
            "continue_final_message needs the last message to be the assistant's.",
            "continue_final_message",
        )
    return await asyncio.to_thread(
        chat_to_token_ids,
        engine.tokenizer,
        [_message(message) for message in body.messages],
        chat_template=template,
        add_generation_prompt=not resume if add_prompt is None else add_prompt,
        continue_final_message=resume,
        kwargs=body.chat_template_kwargs,
    )


def _message(message: ChatMessage) -> dict[str, Any]:
    """As templates expect it, with only the fields that are there."""
    content: str | list[dict[str, str]]
    if isinstance(message.content, str):
        content = message.content
    else:
        content = [{"type": "text", "text": part.text} for part in message.content]
    result: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        result["name"] = message.name
    return result


@dataclass(slots=True)
class _Call:
    """One request on its way."""

    id: str
    model: str
    body: ChatRequest
    params: SamplingParams
    token_ids: list[int]
    engine: Engine
    created: int = field(default_factory=lambda: int(time.time()))
    used: UsageCounter = field(default_factory=UsageCounter)

    def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        return self.engine.generate(
            {"prompt_token_ids": self.token_ids},
            self.params,
            engine_request_id(self.id),
            priority=self.body.priority or 0,
            cache_salt=self.body.cache_salt,
        )

    async def complete(self) -> ChatResponse:
        """The whole answer."""
        last: RequestOutput | None = None
        async with contextlib.aclosing(self.outputs()) as outputs:
            async for output in outputs:
                self.used.add(0, output)
                last = output
        if last is None:
            raise RuntimeError("the engine ended a request without an output")
        answer = ChatResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self.choice(completion) for completion in completions(last)],
            usage=self.used.usage(),
        )
        if last.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(last.prompt_logprobs)
        return answer

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer in pieces: the role of each choice, then what each step gave it."""
        options = self.body.stream_options
        wants_usage = options is not None and options.include_usage
        begun = False
        async with contextlib.aclosing(self.outputs()) as outputs:
            async for output in outputs:
                self.used.add(0, output)
                if not begun:
                    begun = True
                    for index in range(self.params.n):
                        role = Delta(role="assistant", content="")
                        yield event(self.chunk([ChunkChoice(index, role)], usage=wants_usage))
                if output.prompt_logprobs is not None:
                    chunk = self.chunk([], usage=wants_usage)
                    chunk.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
                    yield event(chunk)
                for completion in completions(output):
                    choice = self.delta(completion)
                    if completion.text or completion.finish_reason or choice.logprobs:
                        yield event(self.chunk([choice], usage=wants_usage))
        if wants_usage:
            last = self.chunk([], usage=True)
            last.usage = self.used.usage()
            yield event(last)

    def chunk(self, choices: list[ChunkChoice], *, usage: bool) -> ChatChunk:
        unknown = None if usage else UNSET  # null until the last chunk tells it
        return ChatChunk(self.id, self.created, self.model, choices, usage=unknown)

    def choice(self, completion: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=completion.index,
            message=AssistantMessage(completion.text),
            logprobs=self.logprobs(completion),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )

    def delta(self, completion: CompletionOutput) -> ChunkChoice:
        choice = ChunkChoice(
            index=completion.index,
            delta=Delta(content=completion.text),
            logprobs=self.logprobs(completion),
            finish_reason=completion.finish_reason,
        )
        if completion.finish_reason is not None:
            choice.stop_reason = completion.stop_reason
        return choice

    def logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if completion.logprobs is None:
            return None
        return chat_logprobs(
            completion.logprobs, self.body.top_logprobs or 0, self.engine.tokenizer
        )
