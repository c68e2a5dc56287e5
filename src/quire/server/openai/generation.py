"""Requests in the engine, for all APIs: their prompts, outputs and answers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from quire.core.errors import InvalidRequestError, refusal_of
from quire.core.options import RequestOptions
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.request import EMBEDDED
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.output.stream import OutputSink, OutputStream
from quire.server.errors import RequestFailedError
from quire.server.http.connection import while_connected
from quire.server.http.event_stream import OPENAI, Framing, StreamedAnswer, open_stream
from quire.server.http.json_text import json_response
from quire.server.http.request_ids import engine_request_id
from quire.server.notices import Notice, Notices, Warnings
from quire.server.openai.events import UsageCounter
from quire.server.state import ServerState
from quire.server.turns import Turns
from quire.system.records import dataclass
from quire.system.tasks import all_of

if TYPE_CHECKING:
    from quire.frontend.input.pooling_input import PoolingPrompt
    from quire.frontend.input.prompts import Prompt

    AnyPrompt = Prompt | PoolingPrompt

Search = Callable[["Generation"], Awaitable[list[RequestOutput]]]
Blame = Callable[[InvalidRequestError], Awaitable[InvalidRequestError]]


@dataclass(slots=True, kw_only=True)
class Call:
    """One HTTP request and its prompts in the engine.

    Attributes:
        prompt_field: the client's name of the prompts.
    """

    id: str
    model: str
    server: ServerState
    options: RequestOptions
    prompt_field: str = "prompt"
    _request_ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        adapter = self.server.lora_request(self.model)
        self.options = replace(self.options, lora_request=adapter)

    async def run(
        self, prompts: Sequence[AnyPrompt], params: SamplingParams | PoolingParams
    ) -> list[RequestOutput]:
        """Return the final output of each prompt.

        Raises:
            RequestFailedError: the engine failed a prompt.
            InvalidRequestError: see `start`.
        """
        streams = [OutputStream(RequestOutputKind.FINAL_ONLY) for _ in prompts]

        async def final(stream: OutputStream) -> RequestOutput:
            output = await stream.get()
            completions(output)
            return output

        try:
            await self.start(prompts, params, streams.__getitem__)
            return await all_of(map(final, streams))
        finally:
            self.close()

    async def start(
        self,
        prompts: Sequence[AnyPrompt],
        params: SamplingParams | PoolingParams,
        sink: Callable[[int], OutputSink],
    ) -> None:
        """Start each prompt, which sends its outputs to `sink(number)`.

        Raises:
            InvalidRequestError: one cannot be served; it names the client's field.
        """
        for number, prompt in enumerate(prompts):
            name = engine_request_id(self.id)
            self._request_ids.append(name)
            submit = self.server.engine.submit
            try:
                await submit(prompt, params, name, sink(number), self.options)
            except InvalidRequestError as error:
                raise await self._explained(error) from None

    async def _explained(self, error: InvalidRequestError) -> InvalidRequestError:
        if error.param in ("prompt", "image"):
            error.param = self.prompt_field
        return error

    def close(self) -> None:
        """Abort the prompts that still run."""
        for request_id in self._request_ids:
            self.server.engine.close(request_id)
        self._request_ids.clear()


@dataclass(slots=True, kw_only=True)
class Generation(Call):
    """A request for text.

    Attributes:
        limit_field: the client's name of the limit of tokens.
        blame: returns an error that names the wrong field more exactly; may be slow.
    """

    params: SamplingParams
    prompts: Sequence[Prompt]
    notices: Notices
    limit_field: str = "max_tokens"
    blame: Blame | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def head(self) -> dict[str, Any]:
        """Return the fields of every answer and event."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.server.fingerprint(self.options.lora_request),
        }

    async def _explained(self, error: InvalidRequestError) -> InvalidRequestError:
        if error.param == "max_tokens":
            error.param = self.limit_field
        error = await Call._explained(self, error)
        return error if self.blame is None else await self.blame(error)

    def warnings(self, output: RequestOutput) -> Warnings:
        """Return the warnings about the request's fields, with the limit of an output's tokens."""
        wanted, prompt = self.params.max_tokens, len(output.prompt_token_ids)
        room = self.server.engine.max_total_tokens - prompt
        if wanted is not None and wanted > room:
            text = f"It is {room} instead of {wanted}, because the prompt has {prompt} tokens."
            self.notices.add(Notice(self.limit_field, text))
        return self.notices.warnings()


@dataclass(slots=True, kw_only=True)
class PromptsAnswer:
    """The answer to a request's prompts, in every API.

    Attributes:
        search: finds the outputs in place of sampling.
    """

    call: Generation
    search: Search | None = None
    used: UsageCounter = field(default_factory=UsageCounter)

    @property
    def n(self) -> int:
        """Return the choices of each prompt."""
        return self.call.params.n

    async def outputs(self) -> list[RequestOutput]:
        """Return the final output of each prompt; raises as `submit` and `Call.run`."""
        call = self.call
        call.server.check_queue()
        if self.search is not None:
            return await self.search(call)
        return await call.run(call.prompts, call.params)

    async def submit(self, sink: Callable[[int], OutputSink]) -> None:
        """See `StreamedAnswer.submit`; raises `ApiError`, 429, if the queue is full."""
        self.call.server.check_queue()
        await self.call.start(self.call.prompts, self.call.params, sink)

    def prepare(self, prompt: int, output: RequestOutput) -> Turns[None]:
        """See `StreamedAnswer.prepare`; most answers have nothing to prepare."""
        yield from ()

    def held_up(self) -> None:
        self.call.server.engine.stats.slow_outputs += 1

    def close(self) -> None:
        self.call.close()


class Answer(StreamedAnswer, Protocol):
    """An answer that can also be returned whole."""

    async def outputs(self) -> list[RequestOutput]:
        """Return the final outputs of all prompts; await it once, instead of the stream."""

    async def complete(self, outputs: list[RequestOutput]) -> msgspec.Struct:
        """Return the whole answer."""


async def respond(
    answer: Answer, request: Request, *, stream: bool, framing: Framing = OPENAI
) -> Response:
    """Return `answer` as events or whole; a disconnect ends its work."""
    if stream:
        return await open_stream(answer, request.receive, framing)

    async def whole() -> msgspec.Struct:
        return await answer.complete(await answer.outputs())

    return json_response(await while_connected(whole(), request.receive))


def completions(output: RequestOutput) -> list[CompletionOutput]:
    """Return the completions of `output`.

    Raises:
        RequestFailedError: the engine failed one of them.
        InvalidRequestError: the request's own fields were the cause.
    """
    for completion in output.outputs:
        if completion.finish_reason == "error":
            reason = str(completion.stop_reason)
            raise refusal_of(reason) or RequestFailedError(output.request_id, reason)
    return output.outputs


def prompt_ids(output: RequestOutput) -> list[int] | None:
    """Return the ids for `return_token_ids`; None if the prompt was embeddings."""
    ids = output.prompt_token_ids
    return None if ids[0] == EMBEDDED else ids
