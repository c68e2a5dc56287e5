"""The offline front end: `LLM(model).generate(prompts)`, with the core in this process."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from quire.core.errors import EngineDeadError, InvalidRequestError
from quire.core.log import setup_logging
from quire.core.lora import LoRARequest
from quire.core.options import RequestOptions
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.arrivals import Arrival, Arrivals
from quire.frontend.each import as_list, one_each
from quire.frontend.images.prompts import pictured, without_images
from quire.frontend.input.params import check_sampling_types, check_summed
from quire.frontend.input.prompts import Prompt
from quire.frontend.interrupt import Interrupt, deferred_interrupt
from quire.frontend.llm_engine import LLMEngine
from quire.frontend.llm_pooling import Asked, PoolingMethods, UseTqdm
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.resolve.engine import engine_args

if TYPE_CHECKING:
    from tqdm import tqdm

    from quire.core.beam_search import BeamSearchOutput, BeamSearchParams

Message = dict[str, Any]


class LLM(LLMEngine, PoolingMethods):
    """A model for offline use, from one thread.

        with LLM("embedded") as llm:
            [output] = llm.generate("Once upon a time", SamplingParams(max_tokens=64))
            print(output.outputs[0].text)

    Args:
        model: see `EngineArgs.model`.
        fields: the other fields of `EngineArgs`, by name.

    Attributes:
        args: the user's arguments; `resolved` is the configuration made from them.
        stats: the engine's counters since its start.
        phases: seconds spent in each part of the start, in order.
        facts: hardware and backend of the core (see `messages.Ready`).

    Raises:
        QuireError: the arguments, the model or the machine are unsuitable.
    """

    def __init__(self, model: str = "embedded", **fields: Any) -> None:
        setup_logging()
        args = engine_args(model, fields)
        if args.max_itl_stretch is None:  # no stream waits for tokens: long steps are best
            args = dataclasses.replace(args, max_itl_stretch=math.inf)
        super().__init__(args)
        self._ids = itertools.count()

    @property
    def llm_engine(self) -> LLMEngine:
        """Return this object: vLLM's name for the engine."""
        return self

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's own sampling values; Quire's defaults for the rest."""
        return SamplingParams(**self.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; return the outputs in the prompts' order.

        Args:
            prompts: text, token ids, or mappings with "prompt", "prompt_token_ids" or
                "prompt_embeds", float [tokens, hidden] (with `enable_prompt_embeds`).
            sampling_params: one for all prompts, or one each; the model's defaults if None.
            use_tqdm: show progress if stderr is a terminal; or a function with `tqdm`'s
                arguments that returns a bar.
            lora_request: an adapter for all prompts, or one (or None) each; it is read at its
                first use.
            priority: one each, for the priority policy; the lowest runs first.

        Raises:
            InvalidRequestError: a prompt cannot be served; the error names the first. No prompt
                has run then, with one exception: texts are tokenized one after the other, so
                prompts before a text that is too long may have run. Their outputs are dropped.
        """
        many: list[Prompt] = as_list(prompts)
        params = self._params(sampling_params, len(many))
        given = [0] * len(many) if priority is None else priority
        priorities = one_each("priority", given, int, len(many))
        adapters = one_each("lora_request", lora_request, LoRARequest, len(many), optional=True)
        options = map(RequestOptions, priorities, itertools.repeat(None), adapters)
        return self._run(list(zip(many, params, options, strict=True)), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's chat template.

        Args:
            chat_template_content_format: "auto": the template decides.

        Raises:
            InvalidRequestError: as `generate`, or a conversation cannot be rendered.
        """
        if chat_template_content_format != "auto":
            raise InvalidRequestError(
                f"chat_template_content_format is {chat_template_content_format!r}; Quire detects "
                "it from the template.",
                fix="Leave it out.",
                param="chat_template_content_format",
            )
        first = messages[0] if messages else None
        conversations: Any = [messages] if isinstance(first, dict) else messages
        prompts: list[Prompt] = [
            pictured(
                ChatPrompt(
                    list(conversation),
                    chat_template=chat_template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    kwargs=chat_template_kwargs,
                    tools=tools,
                )
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm, lora_request=lora_request)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """Return the likeliest texts of one prompt or many, by beam search.

        Raises:
            InvalidRequestError: a prompt cannot be served, or has no room for `max_tokens`.
        """
        from quire.frontend.beam_search import beam_search

        check_summed(self._input.config.logprobs_mode, "beam_search")
        ids = [self._input.tokens_of(prompt, params.max_tokens) for prompt in as_list(prompts)]
        found = beam_search(
            lambda beams, one: self.generate(beams, one, use_tqdm=False),
            ids, params, self._input.eos_token_ids,
        )  # fmt: skip
        for output in found:
            for sequence in output.sequences:
                sequence.text = self.tokenizer.decode(sequence.tokens)
        return found

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        """Return one `SamplingParams` per prompt: copies that return the final output only."""
        if given is None:
            given = self.get_default_sampling_params()
        each = one_each("sampling_params", given, SamplingParams, count)
        return [p.replace(output_kind=RequestOutputKind.FINAL_ONLY) for p in each]

    def _run(self, requests: Sequence[Asked], use_tqdm: UseTqdm) -> list[RequestOutput]:
        """Step until every request has its final output; on any exception, abort them all."""
        self._check_awake()
        # Another process checks new structures. That takes a while: Ctrl-C must be immediate here.
        self._loop.run(self._check(requests))
        self._steps.rest()
        ids = [str(next(self._ids)) for _ in requests]
        arrivals = Arrivals(self._queue(ids, requests), self.resolved.config.scheduler)
        done: dict[str, RequestOutput] = {}
        tokens = self.stats.generation_tokens
        with _Progress(len(ids), use_tqdm) as bar, deferred_interrupt() as interrupt:
            try:
                while arrivals or self.has_unfinished_requests():
                    if arrivals:  # starting the event loop takes as long as a third of a step
                        begun = bool(done) or self.stats.generation_tokens > tokens
                        arriving = arrivals.take(begun, not self.has_unfinished_requests())
                        self._loop.run(self._submit(arriving, arrivals, interrupt))
                    interrupt.check()
                    if not self._steps.step():
                        raise EngineDeadError("The core is idle, but requests are waiting.")
                    for output in self._outputs.take():
                        done[output.request_id] = output
                        bar.advance(output)
                while self._steps.step():  # finish steps in flight for requests that have ended
                    pass
            finally:
                self._engine.abort_all()
                self._outputs.take()
        return [done[request_id] for request_id in ids]

    async def _check(self, requests: Sequence[Asked]) -> None:
        """Raise `InvalidRequestError` for errors that are visible before tokenization."""
        for prompt, params, _ in requests:
            if isinstance(params, SamplingParams):
                check_sampling_types(params)
                self._input.check_task()
                self._input.bounded(without_images(prompt, self._input.images), params)
                if params.structured_outputs is not None:
                    await self._engine.check_structure(params.structured_outputs)

    def _queue(self, ids: Sequence[str], requests: Sequence[Asked]) -> list[Arrival]:
        """Return the requests with their ids; under the priority policy, sorted by it."""
        now = time.monotonic()
        queue = [
            (request_id, (prompt, params, replace(options, arrival_time=now)))
            for request_id, (prompt, params, options) in zip(ids, requests, strict=True)
        ]
        if self.resolved.config.scheduler.policy == "priority":
            queue.sort(key=lambda arrival: arrival[1][2].priority)
        return queue

    async def _submit(
        self, arriving: Iterable[Arrival], arrivals: Arrivals, interrupt: Interrupt
    ) -> None:
        for request_id, (prompt, params, options) in arriving:
            interrupt.check()
            tokens = await self._engine.submit(prompt, params, request_id, self._outputs, options)
            arrivals.count(tokens)


class _Progress:
    """A progress bar on stderr, if that is a terminal: finished prompts and tokens/s."""

    def __init__(self, total: int, wanted: UseTqdm) -> None:
        self._bar: tqdm[Any] | None = None
        if callable(wanted):
            self._bar = wanted(total=total, unit="prompt", disable=None)
        elif wanted and sys.stderr.isatty():
            from tqdm import tqdm  # 3 MiB, and a tenth of the imports' time

            self._bar = tqdm(total=total, unit="prompt")
        self._began = time.monotonic()
        self._tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, output: RequestOutput) -> None:
        if self._bar is None:
            return
        self._tokens += sum(len(c.token_ids) for c in output.outputs)
        speed = self._tokens / max(time.monotonic() - self._began, 1e-9)
        self._bar.set_postfix_str(f"{speed:.1f} tok/s", refresh=False)
        self._bar.update()
