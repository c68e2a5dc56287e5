"""What completions and chat completions share: prompts through the engine, usage, events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from quire.core.errors import InvalidRequestError, refusal_of
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.request import EMBEDDED
from quire.core.sampling_params import SamplingParams
from quire.frontend.output.stream import OutputSink, OutputStream
from quire.server.errors import RequestFailedError
from quire.server.http.connection import while_connected
from quire.server.http.event_stream import OPENAI, Framing, StreamedAnswer, open_stream
from quire.server.http.json_text import encode, json_response
from quire.server.http.request_ids import engine_request_id
from quire.server.notices import Notice, Notices, Warnings
from quire.server.openai import answers
from quire.server.openai.protocol import StreamOptions
from quire.server.state import ServerState
from quire.system.records import dataclass
from quire.system.tasks import all_of

if TYPE_CHECKING:
    from quire.frontend.input.prompts import Prompt
    from quire.server.openai.choice import ChoiceReader

Blame = Callable[[InvalidRequestError], Awaitable[InvalidRequestError]]
_MARK = "\0text\0"


@dataclass(slots=True)
class Generation:
    """The prompts of one HTTP request in the engine."""

    id: str
    model: str
    params: SamplingParams
    prompts: list[Prompt]
    server: ServerState
    options: RequestOptions = NO_OPTIONS
    notices: Notices = field(default_factory=Notices)
    prompt_field: str = "prompt"
    limit_field: str = "max_tokens"
    """The client's names of the prompt and of the limit of tokens."""
    blame: Blame | None = None
    """Returns an error that names the wrong field more exactly; may be slow."""
    created: int = field(default_factory=lambda: int(time.time()))
    _request_ids: list[str] = field(default_factory=list)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        adapter = self.server.lora_request(self.model)
        self.options = replace(self.options, lora_request=adapter)
        self.fingerprint = self.server.fingerprint(adapter)

    @property
    def head(self) -> dict[str, Any]:
        """Return the fields of every answer and event."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def submit_one(
        self, prompt: Prompt, params: SamplingParams, sink: OutputSink
    ) -> Awaitable[int]:
        """Start another prompt than the request's own, as `submit` does."""
        request_id = engine_request_id(self.id)
        self._request_ids.append(request_id)
        return self.server.engine.submit(prompt, params, request_id, sink, self.options)

    def submit(self, prompt: int, sink: OutputSink) -> Awaitable[int]:
        """Start a prompt, which sends its outputs to `sink`; see `AsyncLLM.submit`.

        Raises:
            ApiError: 429 if the queue is full; only the request's first prompt checks it.
            InvalidRequestError: it cannot be served; see `explained`.
        """
        if prompt == 0:
            self.server.check_queue()
        return self.submit_one(self.prompts[prompt], self.params, sink)

    async def explained(self, error: InvalidRequestError) -> InvalidRequestError:
        """Return the error with the wrong field under the client's name."""
        names = {"max_tokens": self.limit_field}
        names |= dict.fromkeys(("prompt", "image"), self.prompt_field)
        error.param = names.get(error.param or "", error.param)
        return error if self.blame is None else await self.blame(error)

    def warnings(self, output: RequestOutput) -> Warnings:
        """Return the warnings about the request's fields, with the limit of an output's tokens."""
        wanted, prompt = self.params.max_tokens, len(output.prompt_token_ids)
        room = self.server.engine.max_total_tokens - prompt
        if wanted is not None and wanted > room:
            text = f"It is {room} instead of {wanted}, because the prompt has {prompt} tokens."
            self.notices.add(Notice(self.limit_field, text))
        return self.notices.warnings()

    def held_up(self) -> None:
        """Count an output that waited for its client."""
        self.server.engine.stats.slow_outputs += 1

    def close(self) -> None:
        """Abort the prompts that still run."""
        for request_id in self._request_ids:
            self.server.engine.close(request_id)
        self._request_ids.clear()


class Answer(StreamedAnswer, Protocol):
    """An answer that can also be returned whole."""

    async def complete(self) -> msgspec.Struct:
        """Return the whole answer; await it once, instead of the stream."""


async def respond(
    answer: Answer, request: Request, *, stream: bool, framing: Framing = OPENAI
) -> Response:
    """Return `answer` as events or whole; a disconnect ends its work."""
    if stream:
        return await open_stream(answer, request.receive, framing)
    whole = await while_connected(answer.complete(), request.receive)
    return json_response(whole)


async def final_outputs(streams: Iterable[OutputStream]) -> list[RequestOutput]:
    """Return the one output of each stream, or raise the first failure.

    Raises:
        RequestFailedError: the engine failed a prompt.
    """

    async def final(stream: OutputStream) -> RequestOutput:
        output = await stream.get()
        completions(output)
        return output

    return await all_of(map(final, streams))


@dataclass(slots=True)
class UsageCounter:
    """Adds up the usage of a request's outputs; each output must be counted once.

    Attributes:
        reported, continuous: whether a stream's last chunk reports usage, and each earlier one.
        drafts: by prompt, accepted and verified drafts.
        readers: by choice of a chat, if its text may have more than content; they count the
            tokens of reasoning.
    """

    reported: bool = False
    continuous: bool = False
    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    drafts: dict[int, tuple[int, int]] = field(default_factory=dict)
    completion_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    """Of the last prompt that was handed over."""
    readers: dict[int, ChoiceReader] = field(default_factory=dict)

    @classmethod
    def of_stream(cls, options: StreamOptions | None, *, force: bool = False) -> UsageCounter:
        """Return the request's choice; `force` is the server's --enable-force-include-usage."""
        if options is None:
            return cls(reported=force)
        reported = force or options.include_usage
        return cls(reported=reported, continuous=reported and options.continuous_usage_stats)

    def of_chunk(self) -> answers.Usage | UnsetType | None:
        """Return the usage of a chunk before the last: unset, null, or the usage so far."""
        if self.continuous:
            return self.usage()
        return None if self.reported else UNSET

    def last_event(self, chunk: answers.ChatChunk | answers.CompletionResponse) -> bytes:
        """Return `chunk` with the usage as the last event; nothing if the stream reports none."""
        if not self.reported:
            return b""
        chunk.usage = self.usage()
        return event(chunk)

    def add(self, prompt: int, output: RequestOutput) -> None:
        self.kv_transfer_params = output.kv_transfer_params or self.kv_transfer_params
        self.prompts[prompt] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self.completion_tokens += sum(len(o.token_ids) for o in output.outputs)
        self.drafts[prompt] = output.metrics.num_accepted_tokens, output.metrics.num_draft_tokens

    def usage(self) -> answers.Usage:
        prompt_tokens = sum(tokens for tokens, _ in self.prompts.values())
        cached = sum(cached for _, cached in self.prompts.values())
        return answers.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=prompt_tokens + self.completion_tokens,
            prompt_tokens_details=answers.PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=self._details(),
        )

    def _details(self) -> answers.CompletionTokensDetails:
        details = answers.CompletionTokensDetails(
            reasoning_tokens=sum(reader.reasoning_tokens for reader in self.readers.values())
        )
        if drafted := sum(drafted for _, drafted in self.drafts.values()):
            accepted = sum(accepted for accepted, _ in self.drafts.values())
            details.accepted_prediction_tokens = accepted
            details.rejected_prediction_tokens = drafted - accepted
        return details


def completions(output: RequestOutput) -> list[CompletionOutput]:
    """Return the completions of `output`.

    Raises:
        RequestFailedError: the engine failed one of them.
        InvalidRequestError: the request's own fields were the cause.
    """
    if _failed(output):
        reason = next(str(c.stop_reason) for c in output.outputs if c.finish_reason == "error")
        raise refusal_of(reason) or RequestFailedError(output.request_id, reason)
    return output.outputs


def prompt_ids(output: RequestOutput) -> list[int] | None:
    """Return the ids for `return_token_ids`; None if the prompt was embeddings."""
    ids = output.prompt_token_ids
    return None if ids[0] == EMBEDDED else ids


def event(message: msgspec.Struct) -> bytes:
    """Return `message` as a server-sent event."""
    return b"data: " + encode(message) + b"\n\n"


class TextEvent:
    """An event of which only the text changes; the rest is encoded once.

    Args:
        make: returns the message with a given text.
    """

    def __init__(self, make: Callable[[str], msgspec.Struct]) -> None:
        # Split at the last mark: a model's name could contain the mark, and comes before the text.
        mark = msgspec.json.encode(_MARK)
        self._head, _, self._tail = event(make(_MARK)).rpartition(mark)

    def encode(self, text: str) -> bytes:
        return self._head + msgspec.json.encode(text) + self._tail


def _failed(output: RequestOutput) -> bool:
    return any(completion.finish_reason == "error" for completion in output.outputs)
