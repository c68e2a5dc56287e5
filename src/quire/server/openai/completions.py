"""POST /v1/completions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.core.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.body import decode, read_body
from quire.server.connection import open_stream, while_connected
from quire.server.engine import Engine
from quire.server.errors import invalid
from quire.server.openai.generation import UsageCounter, completions, event, fan_in
from quire.server.openai.logprobs import completion_logprobs, prompt_logprobs
from quire.server.openai.protocol import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.openai.sampling import completion_params
from quire.server.state import engine_request_id, request_id, server_state

if TYPE_CHECKING:
    from quire.engine.input import Prompt

MAX_SEQUENCES = 2048
"""Most completions of one request: its prompts times n."""


async def create_completion(request: Request) -> Response:
    """Validate, generate, answer; the work ends when the client goes."""
    server = server_state(request)
    body = decode(await read_body(request, server.max_body_bytes), CompletionRequest)
    model = server.served_name(body.model)
    engine = server.live_engine()
    params = completion_params(body, engine.default_sampling_params)
    prompts = split_prompts(body.prompt)
    if len(prompts) * params.n > MAX_SEQUENCES:
        raise invalid(
            f"{len(prompts)} prompts with n = {params.n} are {len(prompts) * params.n} "
            f"completions; one request may ask for {MAX_SEQUENCES}.",
            "prompt",
        )
    call = _Call(f"cmpl-{request_id(request)}", model, body, params, prompts, engine)
    if body.stream:
        return await open_stream(call.stream(), request.receive)
    answer = await while_connected(call.complete(), request.receive)
    return Response(msgspec.json.encode(answer), media_type="application/json")


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[Prompt]:
    """One prompt, text or token ids, or a list of either.

    Raises:
        ApiError: 400 for an empty list or a mixed one.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt is empty.", "prompt")
    texts = [p for p in prompt if isinstance(p, str)]
    ids = [p for p in prompt if isinstance(p, int)]
    lists = [p for p in prompt if isinstance(p, list)]
    if len(ids) == len(prompt):
        return [{"prompt_token_ids": ids}]
    if len(texts) == len(prompt):
        return [*texts]
    if len(lists) == len(prompt):
        return [{"prompt_token_ids": each} for each in lists]
    raise invalid("prompt mixes texts, token ids and lists; send one kind.", "prompt")


@dataclass(slots=True)
class _Call:
    """One request on its way; choice `prompt × n + i` is the i-th completion of a prompt."""

    id: str
    model: str
    body: CompletionRequest
    params: SamplingParams
    prompts: list[Prompt]
    engine: Engine
    created: int = field(default_factory=lambda: int(time.time()))
    used: UsageCounter = field(default_factory=UsageCounter)
    offsets: dict[int, int] = field(default_factory=dict)
    """Characters told in logprobs so far, by choice."""
    prompt_positions: dict[int, list[PositionLogprobs | None]] = field(default_factory=dict)
    """By prompt: its log-probabilities, which come once but belong to each of its n choices."""

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        sources = [
            self.engine.generate(
                prompt,
                self.params,
                engine_request_id(self.id),
                priority=self.body.priority or 0,
                cache_salt=self.body.cache_salt,
            )
            for prompt in self.prompts
        ]
        return fan_in(sources)

    async def complete(self) -> CompletionResponse:
        """The whole answer."""
        choices: dict[int, CompletionChoice] = {}
        async with contextlib.aclosing(self.outputs()) as outputs:
            async for prompt, output in outputs:
                self.used.add(prompt, output)
                for choice in self.choices(prompt, output):
                    choices[choice.index] = choice
        return CompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[choices[index] for index in sorted(choices)],
            usage=self.used.usage(),
        )

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer in pieces: one event for what one step gave one choice."""
        wants_usage = self.body.stream_options is not None and (
            self.body.stream_options.include_usage
        )
        usage = None if wants_usage else UNSET
        async with contextlib.aclosing(self.outputs()) as outputs:
            async for prompt, output in outputs:
                self.used.add(prompt, output)
                for choice in self.choices(prompt, output):
                    if choice.text or choice.finish_reason or choice.logprobs:
                        yield event(
                            CompletionResponse(
                                self.id, self.created, self.model, [choice], usage=usage
                            )
                        )
        if wants_usage:
            yield event(
                CompletionResponse(self.id, self.created, self.model, [], usage=self.used.usage())
            )

    def choices(self, prompt: int, output: RequestOutput) -> list[CompletionChoice]:
        """What `output` tells, a choice each; the first time with the prompt, if it is echoed."""
        if output.prompt_logprobs is not None:
            self.prompt_positions[prompt] = output.prompt_logprobs
        positions = self.prompt_positions.get(prompt, [])
        result = []
        for completion in completions(output):
            index = prompt * self.params.n + completion.index
            first = index not in self.offsets
            echo = bool(first and self.body.echo)
            choice = CompletionChoice(
                index=index,
                text=self.prompt_text(output) + completion.text if echo else completion.text,
                logprobs=self.logprobs(index, completion, positions if echo else [], output),
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
            if first and self.body.prompt_logprobs is not None:
                choice.prompt_logprobs = prompt_logprobs(positions)
            result.append(choice)
        return result

    def logprobs(
        self,
        index: int,
        completion: CompletionOutput,
        echoed: list[PositionLogprobs | None],
        output: RequestOutput,
    ) -> CompletionLogprobs | None:
        offset = self.offsets.setdefault(index, 0)
        if self.body.logprobs is None or completion.logprobs is None:
            return None
        first = self.engine.tokenizer.decode(output.prompt_token_ids[:1]) if echoed else ""
        result = completion_logprobs(
            [*echoed, *completion.logprobs], self.body.logprobs, offset, first
        )
        self.offsets[index] = offset + sum(len(token) for token in result.tokens)
        return result

    def prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self.engine.tokenizer.decode(output.prompt_token_ids)
