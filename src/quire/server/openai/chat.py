"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from quire.server.openai.sampling import chat_params
from quire.server.openai.tools import (
    ChoiceReader,
    Reading,
    read_tools,
    template_message,
    tool_definitions,
    with_tools,
)
from quire.server.state import request_id, server_state, trace_headers


async def create_chat_completion(request: Request) -> Response:
    """Validate, render, generate, answer; the work ends when the client goes."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), ChatRequest)
    model = server.served_name(body.model)
    engine = server.live_engine()
    reading = read_tools(body, server.parsers)
    params = chat_params(body, engine.default_sampling_params)
    params = with_tools(params, body, reading, engine.tokenizer)
    call = Generation(
        f"chatcmpl-{request_id(request)}",
        model,
        params,
        [chat_prompt(body, server.chat_template)],
        server,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        trace_headers=trace_headers(request),
    )
    answer = _Answer(call, body, reading)
    if body.stream:
        return await open_stream(answer, request.receive)
    whole = await while_connected(answer.complete(), request.receive)
    return Response(msgspec.json.encode(whole), media_type="application/json")


def chat_prompt(body: ChatRequest, template: str | None) -> ChatPrompt:
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
        [template_message(message, index) for index, message in enumerate(body.messages)],
        chat_template=template,
        add_generation_prompt=not resume if add_prompt is None else add_prompt,
        continue_final_message=resume,
        kwargs=body.chat_template_kwargs,
        tools=tool_definitions(body),
    )


@dataclass(slots=True)
class _Answer:
    """A conversation's answer, whole or as a `StreamedAnswer`."""

    call: Generation
    body: ChatRequest
    reading: Reading
    used: UsageCounter = field(default_factory=UsageCounter)
    texts: list[TextEvent] = field(default_factory=list)
    """By choice, from its first event on."""
    readers: dict[int, ChoiceReader] = field(default_factory=dict)
    """By choice, where there is more in its text than content."""

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
            choices=[self.choice(completion, output) for completion in completions(output)],
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
            if self.reading.needed:
                parts.append(self.read_event(completion, output))
                continue
            if completion.logprobs is None and completion.finish_reason is None:
                if completion.text:
                    parts.append(self.texts[completion.index].encode(completion.text))
                continue
            choice = self.delta(completion)
            if completion.text or completion.finish_reason or choice.logprobs:
                parts.append(event(self.chunk([choice])))
        return b"".join(parts)

    def read_event(self, completion: CompletionOutput, output: RequestOutput) -> bytes:
        """The event of a text that is more than content."""
        reader = self.reader(completion, output)
        found = reader.read(completion)
        ended, logprobs = completion.finish_reason is not None, self.logprobs(completion)
        if not found and not ended and logprobs is None:
            return b""
        if found.content and not (found.calls or found.reasoning or ended or logprobs):
            return self.texts[completion.index].encode(found.content)
        choice = ChunkChoice(
            index=completion.index,
            delta=reader.delta(found),
            logprobs=logprobs,
            finish_reason=reader.finish_reason(completion.finish_reason),
        )
        if ended:
            choice.stop_reason = completion.stop_reason
        return event(self.chunk([choice]))

    def reader(self, completion: CompletionOutput, output: RequestOutput) -> ChoiceReader:
        known = self.readers.get(completion.index)
        if known is None:
            known = ChoiceReader(self.reading, self.call.server.engine.tokenizer, output)
            self.readers[completion.index] = known
        return known

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

    def choice(self, completion: CompletionOutput, output: RequestOutput) -> ChatChoice:
        message, reason = AssistantMessage(completion.text), completion.finish_reason
        if self.reading.needed:
            reader = self.reader(completion, output)
            message = reader.message(reader.read(completion))
            reason = reader.finish_reason(reason)
        return ChatChoice(
            index=completion.index,
            message=message,
            logprobs=self.logprobs(completion),
            finish_reason=reason,
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
