"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import field

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.core.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from quire.server.contract import OF_GENERATION, contract
from quire.server.http.body import read_request
from quire.server.message_parts import mend_chat
from quire.server.openai.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatResponse,
    ChunkChoice,
    Delta,
    PromptLogprobs,
)
from quire.server.openai.beams import search_of
from quire.server.openai.chat_request import read_chat
from quire.server.openai.choice import ChoiceReader
from quire.server.openai.conversation import echoed, rendered
from quire.server.openai.events import TextEvent, UsageCounter, event
from quire.server.openai.generation import (
    PromptsAnswer,
    completions,
    prompt_ids,
    respond,
)
from quire.server.openai.logprobs import chat_logprobs, prompt_logprobs
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.tools import Reading
from quire.server.state import request_id, server_state
from quire.server.turns import Pace, Turns, in_turns
from quire.system.records import dataclass


@contract(body=ChatRequest, answer=ChatResponse, events=ChatChunk, errors=OF_GENERATION)
async def create_chat_completion(request: Request) -> Response:
    """Continue a conversation, whole or as a stream; a disconnect ends the work."""
    server = server_state(request)
    body = await read_request(request, ChatRequest, mend_chat)
    call, reading = read_chat(request, body, f"chatcmpl-{request_id(request, body.request_id)}")
    answer = _Answer(
        call=call,
        reading=reading,
        search=search_of(request, body, call.params),
        used=UsageCounter.of_stream(body.stream_options, force=server.options.force_include_usage),
        body=body,
        echoed=echoed(body),
    )
    return await respond(answer, request, stream=bool(body.stream))


@dataclass(slots=True, kw_only=True)
class ChatAnswer(PromptsAnswer):
    """The answer to a conversation, which is one prompt, in every API."""

    reading: Reading

    def final(self, outputs: list[RequestOutput]) -> RequestOutput:
        """Return the whole output and count its usage."""
        [output] = outputs
        self.used.add(0, output)
        return output

    def reader(self, completion: CompletionOutput, output: RequestOutput) -> ChoiceReader:
        """Return the reader of a choice, which begins with the first `output` that has it."""
        known = self.used.readers.get(completion.index)
        if known is None:
            tokenizer = self.call.server.engine.tokenizer
            known = ChoiceReader(self.reading, tokenizer, output)
            self.used.readers[completion.index] = known
        return known


@dataclass(slots=True, kw_only=True)
class _Answer(ChatAnswer):
    """A chat completion, whole or as a `StreamedAnswer`."""

    body: ChatRequest
    texts: list[TextEvent] = field(default_factory=list)
    """By choice, set with its first event."""
    echoed: str = ""
    """Text that begins every choice."""
    prompt_logprobs: PromptLogprobs | None = None
    """From `prepare` until they are written."""

    @property
    def wants_more(self) -> bool:
        """Return whether events differ in more than their text."""
        return bool(self.body.return_token_ids) or self.used.continuous

    async def complete(self, outputs: list[RequestOutput]) -> ChatResponse:
        output = self.final(outputs)
        await in_turns(self.prepare(0, output))
        body = self.body
        return ChatResponse(
            **self.call.head,
            choices=[await in_turns(self.choice(each, output)) for each in completions(output)],
            usage=self.used.usage(),
            warnings=self.call.warnings(output),
            prompt_logprobs=self.prompt_logprobs,
            prompt_token_ids=prompt_ids(output) if body.return_token_ids else None,
            prompt_text=await in_turns(rendered(output, body, self.call.server)),
            kv_transfer_params=self.used.kv_transfer_params or UNSET,
        )

    def prepare(self, prompt: int, output: RequestOutput) -> Turns[None]:
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = yield from prompt_logprobs(output.prompt_logprobs)

    def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
        """Return an output's events; before the first ones, the role of each choice."""
        self.used.add(prompt, output)
        parts = [] if self.texts else (yield from self.first_events(output))
        if self.prompt_logprobs is not None:
            chunk = self.chunk([])
            chunk.prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
            parts.append(event(chunk))
        pace = Pace()
        for completion in completions(output):
            if completion.logprobs and pace.is_over(sum(map(len, completion.logprobs))):
                yield
            if self.reading.needed:
                parts.append((yield from self.read_event(completion, output)))
                continue
            if not (completion.logprobs or completion.finish_reason or self.wants_more):
                if completion.text:
                    parts.append(self.texts[completion.index].encode(completion.text))
                continue
            choice = yield from self.delta(completion, completion.logprobs)
            if completion.text or completion.finish_reason or choice.logprobs or choice.token_ids:
                parts.append(event(self.chunk([choice])))
        return b"".join(parts)

    def read_event(self, completion: CompletionOutput, output: RequestOutput) -> Turns[bytes]:
        """Return the event of a text that may have more than content."""
        reader = self.reader(completion, output)
        found = reader.read(completion)
        more = found.logprobs or completion.finish_reason or self.wants_more
        if not found and not more:
            return b""
        if found.content and not (found.calls or found.reasoning or more):
            return self.texts[completion.index].encode(found.content)
        choice = yield from self.delta(completion, found.logprobs or None)
        choice.delta = reader.delta(found)
        choice.finish_reason = reader.finish_reason(completion.finish_reason)
        if choice.finish_reason is not None and reader.has_nothing:
            choice.delta.content = ""  # the role's event may have null
        return event(self.chunk([choice]))

    def first_events(self, output: RequestOutput) -> Turns[list[bytes]]:
        """Return the events with each choice's role; the first also has the prompt."""

        def text_event(index: int) -> TextEvent:
            return TextEvent(lambda text: self.chunk([ChunkChoice(index, Delta(content=text))]))

        choices = range(self.n)
        self.texts = [text_event(index) for index in choices]
        role = Delta(
            role="assistant", content=self.echoed or (None if self.reading.may_call else "")
        )
        chunks = [self.chunk([ChunkChoice(index, role)]) for index in choices]
        chunks[0].warnings = self.call.warnings(output)
        if self.body.return_token_ids:
            chunks[0].prompt_token_ids = prompt_ids(output) or UNSET
        prompt_text = yield from rendered(output, self.body, self.call.server)
        chunks[0].prompt_text = prompt_text or UNSET
        return [event(chunk) for chunk in chunks]

    def last_events(self) -> bytes:
        return self.used.last_event(self.chunk([]))

    def chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        return ChatChunk(**self.call.head, choices=choices, usage=self.used.of_chunk())

    def choice(self, completion: CompletionOutput, output: RequestOutput) -> Turns[ChatChoice]:
        message, reason = AssistantMessage(completion.text), completion.finish_reason
        logprobs = completion.logprobs
        if self.reading.needed:
            reader = self.reader(completion, output)
            found = reader.read(completion)
            message = reader.message(found)
            logprobs = None if logprobs is None else found.logprobs
            reason = reader.finish_reason(reason)
        if self.echoed:
            message.content = self.echoed + (message.content or "")
        return ChatChoice(
            index=completion.index,
            message=message,
            logprobs=(yield from self.logprobs(logprobs)),
            finish_reason=reason,
            stop_reason=completion.stop_reason,
            token_ids=self.token_ids(completion),
        )

    def delta(
        self, completion: CompletionOutput, logprobs: list[PositionLogprobs] | None
    ) -> Turns[ChunkChoice]:
        return ChunkChoice(
            index=completion.index,
            delta=Delta(content=completion.text),
            logprobs=(yield from self.logprobs(logprobs)),
            finish_reason=completion.finish_reason,
            stop_reason=UNSET if completion.finish_reason is None else completion.stop_reason,
            token_ids=UNSET if (ids := self.token_ids(completion)) is None else ids,
        )

    def token_ids(self, completion: CompletionOutput) -> list[int] | None:
        return completion.token_ids if self.body.return_token_ids else None

    def logprobs(self, positions: list[PositionLogprobs] | None) -> Turns[ChatLogprobs | None]:
        if positions is None:
            return None
        body, tokenizer = self.body, self.call.server.engine.tokenizer
        top, named = body.top_logprobs or 0, body.logprob_token_ids or ()
        as_ids = self.call.server.options.names_tokens_by_id(body.return_tokens_as_token_ids)
        return (yield from chat_logprobs(positions, top, tokenizer, named=named, as_ids=as_ids))
