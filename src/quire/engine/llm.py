"""The offline front end: `LLM(model).generate(prompts)`, with the core in this process."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import tokenizers  # noqa: F401 -- before torch's library is loaded (see `load_ahead`)
from tqdm import tqdm

from quire.core import torch_library
from quire.core.beam_search import BeamSearchOutput, BeamSearchParams
from quire.core.config import ModelConfig
from quire.core.errors import EngineDeadError
from quire.core.hardware import detect
from quire.core.log import setup_logging
from quire.core.lora import LoRARequest
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.engine.adapters import POLL_SECONDS, KnownAdapters, assign
from quire.engine.arrivals import Arrivals
from quire.engine.beam_search import beam_search
from quire.engine.each import one_each
from quire.engine.grammar_process import GrammarProcess
from quire.engine.input import InputProcessor, Prompt
from quire.engine.interrupt import deferred_interrupt
from quire.engine.llm_pooling import PoolingMethods
from quire.engine.output import OutputProcessor
from quire.engine.process import load_core
from quire.engine.resolve import engine_args, load_tokenizer, resolve
from quire.engine.served_model import sampling_defaults
from quire.engine.stats import EngineStats
from quire.engine.tokenizer_worker import ChatPrompt
from quire.engine.tracing import request_tracer
from quire.text.tokenizer import Tokenizer
from quire.text.vocabulary import special_tokens

logger = logging.getLogger(__name__)

PROFILE_POLL_SECONDS = 0.02
"""Between two looks at whether a trace is written."""

Message = dict[str, Any]


class LLM(PoolingMethods):
    """A model for offline use, from one thread.

        with LLM("embedded") as llm:
            [output] = llm.generate("Once upon a time", SamplingParams(max_tokens=64))
            print(output.outputs[0].text)

    Args:
        model: see `EngineArgs.model`.
        fields: the other fields of `EngineArgs`, by name.

    Attributes:
        args: what the user wrote; `resolved` is what became of it.
        stats: what the engine has counted since it started.
        phases: seconds spent in each part of the start, in order.
        facts: what the core runs on (see `messages.Ready`).

    Raises:
        QuireError: whatever is wrong with the arguments, the model or the machine.
    """

    def __init__(self, model: str = "embedded", **fields: Any) -> None:
        setup_logging()
        began = time.monotonic()
        torch_library.load_ahead()
        args = engine_args(model, fields)
        if args.max_itl_stretch is None:  # nobody watches the tokens come: long steps are best
            args = replace(args, max_itl_stretch=math.inf)
        self.args = args
        self.resolved = resolve(args, detect())
        resolved_at = time.monotonic()
        self.tokenizer: Tokenizer = load_tokenizer(self.resolved)
        tokenized_at = time.monotonic()
        for note in self.resolved.notes:
            logger.info(note)
        self.sampling_defaults = sampling_defaults(self.resolved, args.generation_config)
        self.stats = EngineStats()
        self._tracer = request_tracer(args)
        self._output = OutputProcessor(self.tokenizer, self.stats, self._tracer)
        self._core, ready = load_core(self.resolved.config)
        eos_token_ids = self.model_config.eos_token_ids
        self._structures = GrammarProcess(special_tokens(self.tokenizer, eos_token_ids))
        self._input = InputProcessor(self.resolved, self.tokenizer, ready, self._structures.check)
        self._adapters = KnownAdapters(self.resolved.config)
        self._ids = itertools.count()
        self._closed = False
        self.facts = ready.facts
        self.phases = {
            "resolve": resolved_at - began,
            "tokenizer": tokenized_at - resolved_at,
            **ready.phases,
        }

    @property
    def model_config(self) -> ModelConfig:
        return self.resolved.config.model

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own sampling values, where it has any."""
        return SamplingParams(**self.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; the answers are in the prompts' order.

        Args:
            prompts: text, token ids, or mappings with "prompt", "prompt_token_ids" or
                "prompt_embeds", float [tokens, hidden] (with `enable_prompt_embeds`).
            sampling_params: for all prompts, or one each; the model's defaults if None.
            use_tqdm: show progress, where stderr is a terminal.
            lora_request: adapter for all prompts, or one (or None) each; read when it is first
                asked for.
            priority: one each, lower first, under the priority policy.

        Texts become tokens while the first of them run already.

        Raises:
            InvalidRequestError: for the first prompt that cannot be served. None has run then,
                unless it is a text that turns out to have too many tokens: those before it may
                have, and are dropped.
        """
        many = _as_list(prompts)
        params = self._params(sampling_params, len(many))
        given = [0] * len(many) if priority is None else priority
        priorities = one_each("priority", given, int, len(many))
        for prompt, wanted in zip(many, params, strict=True):
            self._input.check(prompt, wanted)
        adapters = self._find_adapters(lora_request, len(many))
        ids = [str(next(self._ids)) for _ in many]
        requests = list(zip(ids, many, params, priorities, strict=True))
        scheduler = self.resolved.config.scheduler
        if scheduler.policy == "priority":
            requests.sort(key=lambda request: request[-1])
        arrivals = Arrivals(self._input, requests, scheduler.max_num_batched_tokens)
        return self._run(ids, arrivals, use_tqdm, dict(zip(ids, adapters, strict=True)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's chat template.

        Raises:
            InvalidRequestError: as `generate`, and where a conversation cannot be rendered.
        """
        from quire.text.chat import chat_to_token_ids

        first = messages[0] if messages else None
        conversations: Any = [messages] if isinstance(first, dict) else messages
        prompts: list[Prompt] = [
            chat_to_token_ids(
                self.tokenizer,
                list(conversation),
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm, lora_request=lora_request)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """The likeliest texts of one prompt or many, found by keeping the best of each length.

        Raises:
            InvalidRequestError: a prompt cannot be served, or has no room for `max_tokens`.
        """
        ids = [self._input.tokens_of(prompt, params.max_tokens) for prompt in _as_list(prompts)]
        found = beam_search(
            lambda beams, one: self.generate(beams, one, use_tqdm=False),
            ids, params, self._input.eos_token_ids,
        )  # fmt: skip
        for output in found:
            for sequence in output.sequences:
                sequence.text = self.tokenizer.decode(sequence.tokens)
        return found

    def call(self, method: str, *args: Any) -> Any:
        """Run one of the core's utility methods."""
        return self._core.call(method, list(args))

    def start_profile(self) -> None:
        """Record the steps to come, as `profiler_config` says; ignored while that is done already.

        Raises:
            ConfigError: no profiler is configured.
        """
        self.call("start_profile")

    def stop_profile(self) -> list[Path]:
        """End the recording and wait for its files, which are returned.

        A trace that cannot be written is a warning in the log, and not among them.
        """
        status = self.call("stop_profile")
        while status["writing"]:
            time.sleep(PROFILE_POLL_SECONDS)
            status = self.call("profile_status")
        return [Path(self.resolved.config.profiler.torch_profiler_dir) / f for f in status["files"]]

    def shutdown(self) -> None:
        """Free the model and the KV cache. Harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._core.shutdown()
            self._structures.shutdown()
            if self._tracer is not None:
                self._tracer.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        """One `SamplingParams` a prompt, copies that ask for the final output only."""
        if given is None:
            given = self.get_default_sampling_params()
        each = one_each("sampling_params", given, SamplingParams, count)
        return [p.replace(output_kind=RequestOutputKind.FINAL_ONLY) for p in each]

    def _find_adapters(
        self, given: LoRARequest | Sequence[LoRARequest | None] | None, count: int
    ) -> list[LoRARequest | None]:
        """One a prompt, each of them loaded."""
        each = one_each("lora_request", given, LoRARequest, count, optional=True)
        return [None if wanted is None else self._adapter(wanted) for wanted in each]

    def _adapter(self, wanted: LoRARequest) -> LoRARequest:
        known = self._adapters.find(wanted)
        while known is None:
            asked = [wanted.lora_name, wanted.lora_int_id, wanted.lora_path]
            answer = self._core.call("add_lora", asked)
            if answer is not None:
                return self._adapters.learn(wanted, answer)
            time.sleep(POLL_SECONDS)
        return known

    def _run(
        self,
        ids: list[str],
        arrivals: Arrivals,
        use_tqdm: bool,
        adapters: Mapping[str, LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Step until every request has its final output; on any exception, abort them all."""
        if self._closed:
            raise EngineDeadError("The engine has been shut down.")
        self._core.watch.lap("idle")
        done: dict[str, RequestOutput] = {}
        start = self.stats.generation_tokens
        with _Progress(len(ids), use_tqdm) as bar, deferred_interrupt() as interrupt:
            try:
                while arrivals or self._output.num_unfinished:
                    interrupt.check()
                    begun = self.stats.generation_tokens > start
                    self._take(arrivals, adapters or {}, begun=begun)
                    for output in self._step():
                        done[output.request_id] = output
                        bar.advance(output)
                while self._core.has_work():  # a step begun for some who have ended since
                    self._step()
            finally:
                self._abort_all()
        return [done[request_id] for request_id in ids]

    def _take(
        self, arrivals: Arrivals, adapters: Mapping[str, LoRARequest | None], *, begun: bool
    ) -> None:
        """Hand the core what arrives before the next step."""
        if not arrivals:
            return
        with self.stats.front.tokenizing():
            for request in arrivals.take(begun=begun, idle=not self._core.has_work()):
                if (adapter := adapters.get(request.request_id)) is not None:
                    assign(request, adapter)
                self._output.add(request)
                for child in request.children:
                    self._core.add(child)

    def _step(self) -> list[RequestOutput]:
        step = self._core.step()
        if step is None:
            raise EngineDeadError("The engine core has nothing to do, but requests are waiting.")
        processed = self._output.process(step)
        self._core.abort(processed.aborts)
        for probe in processed.probes:
            self._core.add(probe)
        self._core.watch.lap("send")
        return processed.outputs

    def _abort_all(self) -> None:
        for request_id in self._output.request_ids():
            ids, _ = self._output.abort(request_id, time.monotonic())
            self._core.abort(ids)


class _Progress:
    """A bar on stderr, where that is a terminal: prompts done, and tokens a second."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._bar: tqdm[Any] = tqdm(total=total, unit="prompt", disable=None if wanted else True)
        self._began = time.monotonic()
        self._tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()

    def advance(self, output: RequestOutput) -> None:
        self._tokens += sum(len(c.token_ids) for c in output.outputs)
        speed = self._tokens / max(time.monotonic() - self._began, 1e-9)
        self._bar.set_postfix_str(f"{speed:.1f} tok/s", refresh=False)
        self._bar.update()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt becomes a list of one; a list of whole numbers is one prompt."""
    if isinstance(prompts, str | bytes | Mapping | ChatPrompt) or not isinstance(prompts, Iterable):
        return [cast(Prompt, prompts)]
    many: list[Any] = list(prompts)
    return [many] if many and isinstance(many[0], int) else many
