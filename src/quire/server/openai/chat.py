"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.engine.stream import OutputSink
from quire.engine.tokenizer_worker import ChatPrompt
from quire.server.body import decode, read_body
from quire.server.connection import while_connected
from quire.server.errors import invalid
from quire.server.event_stream import open_stream
from quire.server.openai.generation import (
    FinalOutputs,
    Generation,
    TextEvent,
    UsageCounter,
    completions,
    event,
)
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
from quire.server.state import request_id, server_state, trace_headers


async def create_chat_completion(request: Request) -> Response:
    """Validate, render, generate, answer; the work ends when the client goes."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), ChatRequest)
    model = server.served_name(body.model)
    params = chat_params(body, server.live_engine().default_sampling_params)
    call = Generation(
        f"chatcmpl-{request_id(request)}",
        model,
        params,
        [_prompt(body, server.chat_template)],
        server,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        trace_headers=trace_headers(request),
    )
    answer = _Answer(call, body)
    if body.stream:
        return await open_stream(answer, request.receive)
    whole = await while_connected(answer.complete(), request.receive)
    return Response(msgspec.json.encode(whole), media_type="application/json")


def _prompt(body: ChatRequest, template: str | None) -> ChatPrompt:
    """The conversation, for the engine to render.

    Raises:
        ApiError: 400 where it is empty, or its options contradict each other.
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
    return ChatPrompt(
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
class _Answer:
    """A conversation's answer, whole or as a `StreamedAnswer`."""

    call: Generation
    body: ChatRequest
    used: UsageCounter = field(default_factory=UsageCounter)
    texts: list[TextEvent] = field(default_factory=list)
    """By choice, from its first event on."""

    @property
    def wants_usage(self) -> bool:
        options = self.body.stream_options
        return options is not None and options.include_usage

    async def complete(self) -> ChatResponse:
        """The whole answer."""
        final = FinalOutputs(1)
        try:
            await self.submit(final.sink)
            [output] = await final.all()
        finally:
            self.close()
        self.used.add(0, output)
        answer = ChatResponse(
            id=self.call.id,
            created=self.call.created,
            model=self.call.model,
            choices=[self.choice(completion) for completion in completions(output)],
            usage=self.used.usage(),
        )
        if output.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
        return answer

    async def submit(self, sink: Callable[[int], OutputSink]) -> None:
        await self.call.submit(0, sink(0))

    def held_up(self) -> None:
        self.call.held_up()

    def close(self) -> None:
        self.call.close()

    def events(self, prompt: int, output: RequestOutput) -> bytes:
        """The role of each choice, the first time; then what the output gave each."""
        self.used.add(prompt, output)
        parts = [] if self.texts else self.first_events()
        if output.prompt_logprobs is not None:
            chunk = self.chunk([])
            chunk.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
            parts.append(event(chunk))
        for completion in completions(output):
            if completion.logprobs is None and completion.finish_reason is None:
                if completion.text:
                    parts.append(self.texts[completion.index].encode(completion.text))
                continue
            choice = self.delta(completion)
            if completion.text or completion.finish_reason or choice.logprobs:
                parts.append(event(self.chunk([choice])))
        return b"".join(parts)

    def first_events(self) -> list[bytes]:
        def text_event(index: int) -> TextEvent:
            return TextEvent(lambda text: self.chunk([ChunkChoice(index, Delta(content=text))]))

        choices = range(self.call.params.n)
        self.texts = [text_event(index) for index in choices]
        role = Delta(role="assistant", content="")
        return [event(self.chunk([ChunkChoice(index, role)])) for index in choices]

    def last_events(self) -> bytes:
        if not self.wants_usage:
            return b""
        last = self.chunk([])
        last.usage = self.used.usage()
        return event(last)

    def chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        unknown = None if self.wants_usage else UNSET  # null until the last chunk tells it
        call = self.call
        return ChatChunk(call.id, call.created, call.model, choices, usage=unknown)

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
            completion.logprobs, self.body.top_logprobs or 0, self.call.server.engine.tokenizer
        )
