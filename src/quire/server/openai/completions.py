"""POST /v1/completions."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from quire.core.outputs import PositionLogprobs, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.frontend.input.params import check_summed
from quire.server.contract import OF_GENERATION, contract
from quire.server.errors import invalid
from quire.server.http.body import read_request
from quire.server.http.connection import while_connected
from quire.server.notices import Warnings, all_notices
from quire.server.openai import sampling
from quire.server.openai.answers import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    PromptLogprobs,
)
from quire.server.openai.beams import search_of
from quire.server.openai.events import TextEvent, UsageCounter, event
from quire.server.openai.generation import (
    Generation,
    PromptsAnswer,
    completions,
    prompt_ids,
    respond,
)
from quire.server.openai.infill import ends_of, infill, infill_format
from quire.server.openai.logprobs import completion_logprobs, joined, prompt_logprobs
from quire.server.openai.protocol import CompletionRequest
from quire.server.openai.reasoning import limited
from quire.server.request_options import request_options
from quire.server.rules import MAX_SEQUENCES
from quire.server.state import ServerState, request_id, server_state
from quire.server.turns import Pace, Turns, decoded, in_turns
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM
    from quire.frontend.input.prompts import Prompt


@contract(
    body=CompletionRequest,
    answer=CompletionResponse,
    events=CompletionResponse,
    errors=OF_GENERATION,
)
async def create_completion(request: Request) -> Response:
    """Continue a text, whole or as a stream; a disconnect ends the work."""
    server = server_state(request)
    body = await read_request(request, CompletionRequest)
    model = server.served_name(body.model)
    sampling.check_stream_options(request, body)
    engine = server.live_engine()
    params = sampling.completion_params(body, engine.default_sampling_params)
    if sampling.wants_best(body):
        check_summed(engine.resolved.config.logprobs_mode, "best_of")
    params = limited(params, body.thinking_token_budget, server.parsers)
    prompts = _prompts(body)
    if body.suffix:
        work = _filling_in(body.suffix, body, params, prompts, server)
        params, prompts = await while_connected(work, request.receive)
    elif body.add_special_tokens is False:
        prompts = await while_connected(without_specials(prompts, server.engine), request.receive)
    search, each = search_of(request, body, params), body.best_of or params.n
    if len(prompts) * each > MAX_SEQUENCES:
        raise invalid(
            f"{len(prompts)} prompts with n = {each} are {len(prompts) * each} "
            f"completions; one request may ask for {MAX_SEQUENCES}.",
            "prompt",
        )
    call = Generation(
        id=f"cmpl-{request_id(request, body.request_id)}",
        model=model,
        server=server,
        options=request_options(request, body),
        params=params,
        prompts=prompts,
        notices=all_notices(request),
    )
    answer = _Answer(
        call=call,
        search=search,
        used=UsageCounter.of_stream(body.stream_options, force=server.options.force_include_usage),
        body=body,
    )
    return await respond(answer, request, stream=bool(body.stream))


def _prompts(body: CompletionRequest) -> list[Prompt]:
    """Return the prompts of `prompt` or `prompt_embeds`.

    Raises:
        ApiError: 400 if there are none, or both kinds.
    """
    if body.prompt_embeds is None:
        if body.prompt is None:
            raise invalid("prompt is missing.", "prompt")
        return split_prompts(body.prompt)
    if body.prompt:
        raise invalid("prompt and prompt_embeds exclude each other.", "prompt_embeds")
    if body.echo:
        raise invalid("embeddings have no text to echo.", "echo")
    files = [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else body.prompt_embeds
    if not files:
        raise invalid("prompt_embeds is empty.", "prompt_embeds")
    try:
        return [{"prompt_embeds": base64.b64decode(file, validate=True)} for file in files]
    except ValueError:
        raise invalid("prompt_embeds is no base64.", "prompt_embeds") from None


async def without_specials(prompts: Sequence[Any], engine: AsyncLLM) -> list[Any]:
    """Return the prompts, texts as token ids without the model's special tokens."""
    return [
        {"prompt_token_ids": await engine.tokenize(prompt, False)}
        if isinstance(prompt, str)
        else prompt
        for prompt in prompts
    ]


async def _filling_in(
    suffix: str,
    body: CompletionRequest,
    params: SamplingParams,
    prompts: list[Prompt],
    server: ServerState,
) -> tuple[SamplingParams, list[Prompt]]:
    """Return the parameters and prompts with which the model fills in the text before `suffix`."""
    if body.echo:
        raise invalid("echo and suffix exclude each other.", "suffix")
    tokenizer = server.engine.tokenizer
    known = infill_format(tokenizer)
    if (ends := ends_of(known, tokenizer)) and not params.ignore_eos:
        params = params.replace(stop_token_ids=[*(params.stop_token_ids or ()), *ends])
    return params, await infill(prompts, suffix, known, server.engine)


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[Prompt]:
    """Return the prompts of a text, token ids, or a list of either.

    Raises:
        ApiError: 400 for an empty list or a mixed one.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt is empty.", "prompt")
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise invalid("prompt mixes texts, token ids and lists; send one kind.", "prompt")
    if kinds == {int}:
        return [{"prompt_token_ids": prompt}]
    if len(prompt) > MAX_SEQUENCES:
        raise invalid(
            f"There are {len(prompt)} prompts; one request may have {MAX_SEQUENCES}.", "prompt"
        )
    if kinds == {str}:
        return cast("list[Prompt]", prompt)
    return [{"prompt_token_ids": cast(list[int], each)} for each in prompt]


@dataclass(slots=True, kw_only=True)
class _Answer(PromptsAnswer):
    """The completions of a request's prompts, whole or as a `StreamedAnswer`.

    Choice `prompt × n + i` is the i-th completion of a prompt.
    """

    body: CompletionRequest
    offsets: dict[int, int] = field(default_factory=dict)
    """Characters reported in logprobs so far, by choice."""
    prompt_logprobs: dict[int, PromptLogprobs] = field(default_factory=dict)
    """By prompt: its log-probabilities, which come once but belong to each of its n choices."""
    echoed: dict[int, tuple[CompletionLogprobs, int]] = field(default_factory=dict)
    """By prompt: the same as `logprobs` of an echoed prompt, and the prompt's characters."""
    prompt_texts: dict[int, str] = field(default_factory=dict)
    """By prompt: the text of token ids that are echoed."""
    texts: dict[int, TextEvent] = field(default_factory=dict)
    """By choice, from its first event on."""
    begun: bool = False
    """Whether there has been an event, which had the warnings."""

    async def complete(self, outputs: list[RequestOutput]) -> CompletionResponse:
        choices: list[CompletionChoice] = []
        warnings: Warnings = UNSET
        for prompt, output in enumerate(outputs):
            self.take(prompt, output)
            await in_turns(self.prepare(prompt, output))
            choices += await in_turns(self.choices(prompt, output))
            warnings = self.call.warnings(output)
        answer = self.response(choices)
        answer.warnings = warnings
        answer.usage = self.used.usage()
        answer.kv_transfer_params = self.used.kv_transfer_params or UNSET
        return answer

    @property
    def n(self) -> int:
        """Return the choices of each prompt, of which `best_of` computes more."""
        return self.body.n or 1

    def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
        """Return one event per choice of the output."""
        self.take(prompt, output)
        if len(output.outputs) == 1:
            completion = output.outputs[0]
            known = self.texts.get(prompt * self.n + completion.index)
            more = completion.logprobs or completion.finish_reason or self.wants_more
            if known is not None and self.begun and not more:
                return known.encode(completion.text) if completion.text else b""
        parts: list[bytes] = []
        for choice in (yield from self.choices(prompt, output)):
            logprobs = choice.logprobs or choice.prompt_logprobs
            if choice.text or choice.finish_reason or logprobs or choice.token_ids:
                parts.append(event(self.chunk(choice, output)))
            self.texts.setdefault(choice.index, self.text_event(choice.index))
        return b"".join(parts)

    def take(self, prompt: int, output: RequestOutput) -> None:
        """Count an output's tokens; none if only the prompt is echoed."""
        if sampling.echoes_alone(self.body):
            for completion in output.outputs:
                completion.text, completion.token_ids = "", []
                completion.logprobs = None if completion.logprobs is None else []
        self.used.add(prompt, output)
        if len(completions(output)) > self.n:
            output.outputs.sort(key=lambda each: -(each.cumulative_logprob or 0))
            output.outputs = [replace(o, index=i) for i, o in enumerate(output.outputs[: self.n])]

    def chunk(self, choice: CompletionChoice, output: RequestOutput) -> CompletionResponse:
        chunk = self.response([choice])
        if not self.begun:
            self.begun = True
            chunk.warnings = self.call.warnings(output)
        return chunk

    def last_events(self) -> bytes:
        return self.used.last_event(self.response([]))

    @property
    def wants_more(self) -> bool:
        """Return whether events differ in more than their text."""
        return bool(self.body.return_token_ids) or self.used.continuous

    def text_event(self, index: int) -> TextEvent:
        return TextEvent(lambda text: self.response([CompletionChoice(index, text, None, None)]))

    def response(self, choices: list[CompletionChoice]) -> CompletionResponse:
        return CompletionResponse(**self.call.head, choices=choices, usage=self.used.of_chunk())

    def prepare(self, prompt: int, output: RequestOutput) -> Turns[None]:
        """Build the log-probabilities of a prompt, if the output has them."""
        positions = output.prompt_logprobs
        if positions is None:
            return
        if self.body.prompt_logprobs is not None:
            self.prompt_logprobs[prompt] = yield from prompt_logprobs(positions)
        if self.body.echo and self.wants_logprobs:
            self.echoed[prompt] = yield from self.logprobs(positions, 0, output.prompt_token_ids[0])

    def choices(self, prompt: int, output: RequestOutput) -> Turns[list[CompletionChoice]]:
        """Return the output's choices; the first ones include an echoed prompt."""
        result = []
        pace = Pace()
        for completion in completions(output):
            if completion.logprobs and pace.is_over(sum(map(len, completion.logprobs))):
                yield
            index = prompt * self.n + completion.index
            first = index not in self.offsets
            echo = bool(first and self.body.echo)
            logprobs, offset = None, self.offsets.get(index, 0)
            if self.wants_logprobs and completion.logprobs is not None:
                echoed = self.echoed.get(prompt) if echo else None
                offset = echoed[1] if echoed else offset
                logprobs, offset = yield from self.logprobs(completion.logprobs, offset)
                if echoed is not None:
                    logprobs = joined(echoed[0], logprobs)
            self.offsets[index] = offset
            text = (yield from self.prompt_text(prompt, output)) if echo else ""
            choice = CompletionChoice(
                index=index,
                text=text + completion.text,
                logprobs=logprobs,
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
            if first and self.body.prompt_logprobs is not None:
                choice.prompt_logprobs = self.prompt_logprobs.get(prompt, [])
            if self.body.return_token_ids:
                choice.token_ids = completion.token_ids
                if first:
                    choice.prompt_token_ids = prompt_ids(output)
            result.append(choice)
        return result

    @property
    def wants_logprobs(self) -> bool:
        return self.body.logprobs is not None or bool(self.body.logprob_token_ids)

    def logprobs(
        self, positions: Sequence[PositionLogprobs | None], offset: int, first: int | None = None
    ) -> Turns[tuple[CompletionLogprobs, int]]:
        """Return `positions` as an answer's, `offset` characters behind the choice's beginning.

        Args:
            first: the prompt's first token, if the positions are the prompt's.
        """
        options = self.call.server.options
        return completion_logprobs(
            positions,
            self.body.logprobs or 0,
            offset,
            (0, "") if first is None else (first, self.decoded([first])),
            named=self.body.logprob_token_ids or (),
            as_ids=options.names_tokens_by_id(self.body.return_tokens_as_token_ids),
        )

    def prompt_text(self, prompt: int, output: RequestOutput) -> Turns[str]:
        if output.prompt is not None:
            return output.prompt
        if prompt not in self.prompt_texts:  # once for all of its choices
            tokenizer, ids = self.call.server.engine.tokenizer, output.prompt_token_ids
            text = yield from decoded(tokenizer, ids, skip_special_tokens=True)
            self.prompt_texts[prompt] = text
        return self.prompt_texts[prompt]

    def decoded(self, token_ids: list[int]) -> str:
        return self.call.server.engine.tokenizer.decode(token_ids)
