"""A response being generated: whole, or as the Responses API's events."""

from __future__ import annotations

import time
from collections.abc import Callable

from quire.core.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from quire.server.errors import describe
from quire.server.http.event_stream import Framing
from quire.server.openai.answers import TokenLogprob
from quire.server.openai.chat import ChatAnswer
from quire.server.openai.generation import Generation, completions
from quire.server.openai.logprobs import chat_logprobs
from quire.server.openai.tools import Reading
from quire.server.responses import protocol
from quire.server.responses.item_types import ItemStatus
from quire.server.responses.tools import ToolSet
from quire.server.responses.writer import ItemWriter
from quire.server.tools.deltas import Delta, TextDelta
from quire.server.turns import Turns, in_turns
from quire.system.records import dataclass


@dataclass(slots=True, kw_only=True)
class ResponseAnswer(ChatAnswer):
    """The response so far. `keep` stores the finished response; None if it is not stored."""

    response: protocol.ResponseObject
    writer: ItemWriter
    keep: Callable[[protocol.ResponseObject], None] | None

    def __post_init__(self) -> None:
        self.response.output = self.writer.items

    @property
    def framing(self) -> Framing:
        return Framing(self.failed, b"")

    async def complete(self, outputs: list[RequestOutput]) -> protocol.ResponseObject:
        output = self.final(outputs)
        self.response.warnings = self.call.warnings(output)
        await in_turns(self.write(output))
        self.finish()
        return self.response

    def queued(self) -> list[bytes]:
        """Return the events of a response that waits in the background."""
        return self.state_events("response.created", "response.queued")

    def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
        """Return an output's events in order, joined."""
        return b"".join((yield from self.new_events(prompt, output)))

    def new_events(self, prompt: int, output: RequestOutput) -> Turns[list[bytes]]:
        """Return an output's events in order."""
        self.used.add(prompt, output)
        self.response.warnings = self.call.warnings(output)
        events: list[bytes] = []
        if self.response.status == "queued":
            self.response.status = "in_progress"
            created = () if self.response.background else ("response.created",)
            events = self.state_events(*created, "response.in_progress")
        return events + (yield from self.write(output))

    def state_events(self, *kinds: str) -> list[bytes]:
        """Return events with the whole response so far."""
        return [self.writer.event(kind, response=self.response) for kind in kinds]

    def last_events(self) -> bytes:
        self.finish()
        return b"".join(self.state_events(f"response.{self.response.status}"))

    def failed(self, error: Exception) -> bytes:
        """Return the events of a failed response, joined."""
        return b"".join(self.fail(error))

    def fail(self, error: Exception) -> list[bytes]:
        """Set and store the response's error, and return its events."""
        info = describe(error)[1].error
        events = self.writer.end("incomplete") if self.writer.items else []
        self.response.status = "failed"
        usual = "invalid_prompt" if info.type == "invalid_request_error" else "server_error"
        self.response.error = protocol.ResponseFailure(info.code or usual, info.message)
        if self.keep is not None:
            self.keep(self.response)
        return events + self.state_events("response.failed")

    def write(self, output: RequestOutput) -> Turns[list[bytes]]:
        """Add an output to the items, and return its events."""
        [completion] = completions(output)
        events = yield from self.writer.write(self.read(completion, output), self.logprobs)
        if completion.finish_reason is not None:
            status: ItemStatus = "completed" if completion.finish_reason == "stop" else "incomplete"
            if completion.finish_reason == "length":
                self.response.incomplete_details = protocol.IncompleteDetails("max_output_tokens")
            self.response.status = status
            events += self.writer.end(status)
        return events

    def read(self, completion: CompletionOutput, output: RequestOutput) -> Delta:
        if not self.reading.needed:
            found = Delta()
            text = TextDelta("content", completion.text, logprobs=completion.logprobs or [])
            found.add(text)
            return found
        return self.reader(completion, output).read(completion)

    def logprobs(self, positions: list[PositionLogprobs]) -> Turns[list[TokenLogprob]]:
        """Return log-probabilities in the API's form."""
        tokenizer = self.call.server.engine.tokenizer
        found = yield from chat_logprobs(positions, self.response.top_logprobs, tokenizer)
        return found.content

    def finish(self) -> None:
        """Set the usage and the time of completion, and store the response."""
        response, used = self.response, self.used.usage()
        response.usage = protocol.ResponseUsage(
            used.prompt_tokens,
            protocol.InputTokensDetails(used.prompt_tokens_details.cached_tokens),
            used.completion_tokens,
            protocol.OutputTokensDetails(used.completion_tokens_details.reasoning_tokens),
            used.total_tokens,
        )
        if response.status == "completed":
            response.completed_at = int(time.time())
        if self.keep is not None:
            self.keep(response)


def begin_answer(
    body: protocol.ResponsesRequest,
    call: Generation,
    reading: Reading,
    tools: ToolSet,
    keep: Callable[[protocol.ResponseObject], None] | None,
) -> ResponseAnswer:
    """Return a new answer to `body`, without items."""
    params = call.params
    response = protocol.ResponseObject(
        id=call.id,
        created_at=call.created,
        model=call.model,
        status="queued",
        output=[],
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        store=keep is not None,
        background=bool(body.background),
        tools=[one.tool for one in tools.given],
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text=protocol.TextConfig((body.text and body.text.format) or protocol.TextFormat()),
        reasoning=body.reasoning or protocol.ReasoningConfig(),
        max_output_tokens=body.max_output_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        warnings=call.notices.warnings(),
    )
    encode = protocol.ENCRYPTED in (body.include or [])
    writer = ItemWriter(reading.new_call_id, tools.called, encode=encode)
    return ResponseAnswer(call=call, reading=reading, response=response, writer=writer, keep=keep)
