"""The engine in this process: requests in, one step at a time, outputs out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import tokenizers  # noqa: F401 -- before torch's library is loaded (see `load_ahead`)

from quire.core.config import ModelConfig
from quire.core.errors import EngineDeadError
from quire.core.log import setup_logging
from quire.core.lora import LoRARequest
from quire.core.options import RequestOptions
from quire.core.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.engine.process import load_core
from quire.frontend.client.asleep import Asleep, SleepingCore, check_idle, sleeping_error
from quire.frontend.input.input_processor import InputProcessor, ProcessedRequest, Prompt
from quire.frontend.input.known_adapters import POLL_SECONDS, KnownAdapters
from quire.frontend.input.pooling_input import PoolingInput, PoolingPrompt
from quire.frontend.input.served_model import sampling_defaults
from quire.frontend.not_there import NotThere
from quire.frontend.output.output_processor import OutputProcessor
from quire.frontend.output.pooling_output import check_task, pooled_output
from quire.frontend.output.tracing import request_tracer
from quire.frontend.workers.grammar_process import GrammarProcess
from quire.metrics.reader import Metric, read_metrics
from quire.metrics.stats import EngineStats
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import load_tokenizer, resolve
from quire.system import torch_library
from quire.system.hardware import detect
from quire.system.heap import return_memory
from quire.text.tokenizer import Tokenizer
from quire.text.user_tokenizer import UserTokenizer
from quire.text.vocabulary import special_tokens

if TYPE_CHECKING:
    from quire.engine.core import EngineCore

logger = logging.getLogger(__name__)

PROFILE_POLL_SECONDS = 0.02
"""Between two looks at whether a trace is written."""

EngineOutput = RequestOutput | PoolingRequestOutput[PoolingOutput]


class LLMEngine(NotThere):
    """A model in this process, for one thread that steps it.

        engine = LLMEngine.from_engine_args(EngineArgs(model="embedded"))
        engine.add_request("a", "Once upon a time", SamplingParams())
        while engine.has_unfinished_requests():
            outputs = engine.step()
        engine.shutdown()

    Attributes:
        args: what the user wrote; `resolved` is what became of it.
        stats: what the engine has counted since it started.
        phases: seconds spent in each part of the start, in order.
        facts: what the core runs on (see `messages.Ready`).

    Raises:
        QuireError: whatever is wrong with the arguments, the model or the machine.
    """

    def __init__(self, args: EngineArgs) -> None:
        setup_logging()
        began = time.monotonic()
        torch_library.load_ahead()
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
        self._asleep = Asleep()
        eos_token_ids = self.model_config.eos_token_ids
        self._structures = GrammarProcess(special_tokens(self.tokenizer, eos_token_ids))
        self._input = InputProcessor(self.resolved, self.tokenizer, ready, self._structures.check)
        self._adapters = KnownAdapters(self.resolved.config)
        self._pooling_params: dict[str, PoolingParams] = {}
        self._closed = False
        self.facts = ready.facts
        self.phases = {
            "resolve": resolved_at - began,
            "tokenizer": tokenized_at - resolved_at,
            **ready.phases,
        }

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        return LLMEngine(engine_args)

    @property
    def model_config(self) -> ModelConfig:
        return self.resolved.config.model

    def get_tokenizer(self) -> UserTokenizer:
        return UserTokenizer(self.tokenizer)

    # -- requests -------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | PoolingPrompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        *,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a request; `step` gives its outputs, as `params.output_kind` asks for them.

        Args:
            arrival_time: on the monotonic clock; now if None.

        Raises:
            InvalidRequestError: it cannot be served, or its id is in use.
        """
        self._check_awake()
        now = time.monotonic() if arrival_time is None else arrival_time
        adapter = None if lora_request is None else self._adapter(lora_request)
        headers = dict(trace_headers) if trace_headers else None
        options = RequestOptions(priority, None, adapter, headers)
        if isinstance(params, PoolingParams):
            request = PoolingInput(self._input).process(
                request_id, cast(PoolingPrompt, prompt), params, arrival_time=now, options=options
            )
        else:
            request = self._input.process(
                request_id, cast(Prompt, prompt), params, arrival_time=now, options=options
            )
        self._enter(request)
        if isinstance(params, PoolingParams):
            self._pooling_params[request_id] = params

    def step(self) -> Sequence[EngineOutput]:
        """Compute one step; return the outputs that it gives, none where nothing is to be done."""
        self._check_awake()
        if not self._core.has_work():
            return []
        return [self._finished(output) for output in self._step()]

    def has_unfinished_requests(self) -> bool:
        return self._output.num_unfinished > 0

    def get_num_unfinished_requests(self) -> int:
        return self._output.num_unfinished

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """End requests without another output; unknown ids are ignored."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self._pooling_params.pop(request_id, None)
            ids, _ = self._output.abort(request_id, time.monotonic())
            if ids:
                self._core.abort(ids)

    # -- the engine as a whole ------------------------------------------------------------

    def call(self, method: str, *args: Any) -> Any:
        """Run one of the core's utility methods."""
        return self._core.call(method, list(args))

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes: prompts are computed anew. Return True."""
        self.call("reset_prefix_cache")
        return True

    def get_metrics(self) -> list[Metric]:
        """What the engine has counted, under the names that `GET /metrics` has."""
        return read_metrics(self.stats, self.args.model)

    def sleep(self, level: int = 1) -> None:
        """Free the weights and the KV cache, until `wake_up`; requests raise meanwhile.

        Args:
            level: 1 or 2, which mean the same: the model's files keep the weights.

        Raises:
            InvalidRequestError: requests are under way.
        """
        self._check_open()
        if self._asleep:
            return
        check_idle(self._output.num_unfinished)
        self._asleep.begin(level)
        self._core.shutdown()
        self._core = cast("EngineCore", SleepingCore())
        self.stats.forget_core()
        return_memory()
        logger.info("the engine sleeps")

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model again, with an empty KV cache; the answers are those of before.

        Args:
            tags: "weights", "kv_cache"; all if None. The model is loaded once both are awake.

        Raises:
            OutOfMemoryError: others have taken the memory meanwhile.
        """
        self._check_open()
        if self._asleep.end(tags):
            try:
                self._core, ready = load_core(self.resolved.config)
            except BaseException:
                self._asleep.begin(1)
                raise
            self._input.on_ready(ready)
            self.facts = ready.facts
            logger.info("the engine is awake")

    def is_sleeping(self) -> bool:
        return bool(self._asleep)

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

    # -- parts that `LLM` uses ------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("The engine has been shut down.")

    def _check_awake(self) -> None:
        self._check_open()
        if self._asleep:
            raise sleeping_error("wake_up()")

    def _adapter(self, wanted: LoRARequest) -> LoRARequest:
        """The adapter as it is known, once it is loaded."""
        known = self._adapters.find(wanted)
        while known is None:
            asked = [wanted.lora_name, wanted.lora_int_id, wanted.lora_path]
            answer = self._core.call("add_lora", asked)
            if answer is not None:
                return self._adapters.learn(wanted, answer)
            time.sleep(POLL_SECONDS)
        return known

    def _enter(self, request: ProcessedRequest) -> None:
        """Hand a request to the core."""
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

    def _finished(self, output: RequestOutput) -> EngineOutput:
        params = self._pooling_params.pop(output.request_id, None)
        if params is None:
            return output
        return pooled_output(check_task(self.resolved.config.pooling, "score"), params, output)
