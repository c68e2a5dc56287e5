"""The asyncio front end: many requests at once, the core in a process of its own. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from quire.core.errors import EngineDeadError, QuireError
from quire.core.messages import AbortRequests, Call, CallResult, Ready, StepOutputs
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.outputs import RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.async_vllm import LateStart, VllmMethods
from quire.frontend.client.asleep import Asleep
from quire.frontend.client.calls import CoreCalls
from quire.frontend.client.core_client import CoreClient, ProcessClient
from quire.frontend.client.profiling import ProfilingClient
from quire.frontend.client.start import begin, start
from quire.frontend.client.supervisor import Supervisor
from quire.frontend.client.watchdog import TICKS, Watchdog
from quire.frontend.input.input_processor import InputProcessor, Prompt
from quire.frontend.input.intake import Intake
from quire.frontend.input.known_adapters import AdapterClient
from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.served_model import sampling_defaults
from quire.frontend.lag import LoopLag
from quire.frontend.output.output_processor import OutputProcessor
from quire.frontend.output.stream import OutputSink
from quire.frontend.output.tracing import request_tracer
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.metrics.stats import EngineStats
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved
from quire.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DRAIN_POLL_SECONDS = 0.02


class AsyncLLM(VllmMethods):
    """Serves requests from the event loop it was started in.

        engine = await AsyncLLM.start(EngineArgs(model="embedded"))
        async for output in engine.generate("Once upon a time", SamplingParams()):
            ...
        engine.shutdown()

    Attributes:
        args: what the user wrote; `resolved` is what became of it.
        default_sampling_params: the model's own values for fields that a request leaves unset.
        phases: seconds that the start waited for each of its parts, in order.
        beside: seconds of parts that ran while others did.
        facts: what the core runs on (see `messages.Ready`).
        draining: whether `drain` was called.
        profiling: the core's profilers.
        timelines: what happened to the requests under way, and to the latest that have ended.
    """

    def __init__(
        self,
        resolved: Resolved,
        tokenizer: Tokenizer,
        args: EngineArgs,
        connect: Callable[[], CoreClient] = ProcessClient,
        first: CoreClient | None = None,
        pool: TokenizerPool | None = None,
    ) -> None:
        self.resolved = resolved
        self.args = args
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.default_sampling_params = sampling_defaults(resolved, args.generation_config)
        self.phases: dict[str, float] = {}
        self.beside: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.draining = False
        self._late_start: LateStart | None = None
        self._asleep = Asleep()
        self._core = Supervisor(connect, resolved.config, self._on_message, self, first)
        self._tracer = request_tracer(args)
        self._output = OutputProcessor(tokenizer, self.stats, self._tracer)
        self.timelines = self._output.timelines
        if (lora := resolved.config.lora) is not None:
            self.stats.max_loras, self.stats.adapters = lora.max_loras, self._output.adapters
        self._intake = Intake(self.stats.front, tokenizer, self.model_config, pool)
        self._watchdog: Watchdog | None = None
        self._timers: list[LoopLag | Watchdog] = []
        self._calls = CoreCalls(self._send_call)
        self.profiling = ProfilingClient(resolved.config.profiler, self.call)
        self._adapters = AdapterClient(resolved.config, self.call)

    @classmethod
    async def start(cls, args: EngineArgs, core: ProcessClient | None = None) -> AsyncLLM:
        """Resolve the arguments, start the core and wait until its model is loaded.

        Args:
            core: a client that has begun ahead, for torch to be imported earlier.

        Raises:
            QuireError: whatever is wrong with the arguments, the model or the machine.
        """
        return await start(cls, args, core or ProcessClient.begun())

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """An engine whose core loads the model from now on; its first use waits until it is there.

        Raises:
            QuireError: the arguments or the model's files are wrong.
        """
        begun = begin(cls, engine_args, ProcessClient.begun())
        engine = begun.engine
        engine._late_start = LateStart(lambda: engine.start_core(begun.resolved_at))
        return engine

    async def start_core(self, configured: float | None = None) -> Ready:
        """Start the core, or wait for that which was configured then; `start` calls this."""
        configured = configured or time.monotonic()
        if self._core.client.separate:
            self._begin_to_watch()
        try:
            await self._intake.start()
            ready = await self._core.start()
            self.on_new_core(ready)
        except BaseException:
            self.shutdown()
            raise
        self.phases = {"spawn": max(0.0, ready.began - configured), **ready.phases}
        return ready

    def _begin_to_watch(self) -> None:
        """Measure how late the event loop is, and notice a core that is stuck."""
        self.stats.front.watch_loop()
        lag = LoopLag(self.stats.event_loop_lag, lambda: self.num_unfinished > 0)
        limit = self.resolved.config.step_timeout
        self._watchdog = Watchdog(
            limit,
            busy=lambda: self.is_ready and bool(self.num_unfinished or self._calls),
            stuck=lambda: self._core.end_stuck(limit),
            hung=lambda: self._core.client.suspects.hung(TICKS),
        )
        self._timers = [lag, self._watchdog]

    @property
    def max_total_tokens(self) -> int:
        """Most tokens of a prompt and its answer: the context, or the KV cache if that is less."""
        processor = self._intake.processor
        return self.max_model_len if processor is None else processor.max_total_tokens

    @property
    def input_processor(self) -> InputProcessor:
        """What makes requests of prompts; there once the core is ready."""
        assert self._intake.processor is not None
        return self._intake.processor

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken: the core is there, and nobody has asked to `drain`."""
        return self._intake.processor is not None and self.error is None and not self.draining

    @property
    def error(self) -> QuireError | None:
        """`EngineRestartingError` until a lost core is replaced; `EngineDeadError` for ever."""
        return self._core.error

    @property
    def num_unfinished(self) -> int:
        """Requests under way."""
        return self._output.num_unfinished

    @property
    def num_queued(self) -> int:
        """Sequences under way beyond those that one batch holds; less than 0: seats are free."""
        arriving = self._intake.num_arriving + self._intake.num_abandoned
        return arriving + self._output.num_sequences - self.max_num_seqs

    async def submit(
        self,
        prompt: Prompt | PoolingPrompt,
        params: SamplingParams | PoolingParams,
        request_id: str,
        sink: OutputSink,
        options: RequestOptions = NO_OPTIONS,
    ) -> int:
        """Start a request whose outputs go to `sink`; return its number of prompt tokens.

        A pooling model's result is the only output's `pooled`; `pooling_output` finishes it. The
        caller must `close` the request in the end, unless this raises, which it does as `generate`.
        """
        if self._late_start is not None:
            await self._started()
        if self._core.error is not None:
            raise self._core.error
        if (adapter := options.lora_request) is not None:
            adapter = await self.add_lora(adapter)
            options = replace(options, lora_request=adapter)
        request = await self._intake.process(request_id, prompt, params, options)
        if self._core.error is not None:
            raise self._core.error
        if adapter is not None:
            self._adapters.find(adapter)  # it may have been removed meanwhile
        self._output.add(request, sink)
        try:
            for child in request.children:
                self._core.client.send(child)
        except BaseException:
            self.close(request_id)
            raise
        self._watch()
        return len(request.prompt_token_ids)

    def close(self, request_id: str, sink: OutputSink | None = None) -> None:
        """Forget a request, and abort it if it still runs; unknown ids are ignored.

        With `sink`, another request that has taken the id since is left alone.
        """
        if sink is None or self._output.sink(request_id) is sink:
            self._end(request_id)

    async def drain(self, seconds: float) -> None:
        """Be ready no more, and let requests under way end, for so many seconds; then end them."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self.num_unfinished or self._intake.num_arriving:
            if time.monotonic() >= deadline:
                self.on_dead(EngineDeadError("The server is shutting down."))
                self._intake.shutdown()
                self._core.hurry()
                break
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def tokenize(self, prompt: str | ChatPrompt, add_special_tokens: bool) -> list[int]:
        """A prompt's tokens, off the event loop; of a conversation the template writes them all."""
        return await self._intake.tokenize(self.tokenizer, prompt, add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of tokens, control tokens included, off the event loop."""
        return await self._intake.detokenize(self.tokenizer, token_ids)

    async def check_structure(self, wanted: StructuredOutputsParams) -> None:
        """Raise what `submit` would for this alone."""
        await self._intake.structures.check(wanted)

    def shutdown(self) -> None:
        """Stop the core; requests under way fail. Harmless when repeated."""
        self._core.shutdown()
        for timer in self._timers:
            timer.stop()
        self._intake.shutdown()
        if self._tracer is not None:
            self._tracer.shutdown()

    def _end(self, request_id: str) -> RequestOutput | None:
        """Drop a request here and in the core; return its last output, if it was here."""
        ids, output = self._output.abort(request_id, time.monotonic())
        if ids:
            with contextlib.suppress(EngineDeadError):
                self._core.client.send(AbortRequests(ids))
        return output

    def _abort(self, request_id: str) -> None:
        """End a request, whose consumer gets what there is."""
        sink = self._output.sink(request_id)
        output = self._end(request_id)
        if sink is not None and output is not None:
            sink.put(output)

    def _send_call(self, call: Call) -> None:
        if self._core.error is not None:
            raise self._core.error
        self._core.client.send(call)
        self._watch()

    def _watch(self) -> None:
        """There is work: see how late the event loop is, and whether the core still lives."""
        for timer in self._timers:
            timer.start()

    def _on_message(self, message: StepOutputs | CallResult) -> None:
        if self._watchdog is not None:
            self._watchdog.silent = 0
        if isinstance(message, CallResult):
            self._calls.answer(message)
            return
        for reply in self._output.process(message).replies():
            self._core.client.send(reply)

    def on_lost(self, error: QuireError) -> None:
        """Retry requests that gave nothing yet; fail the others, and those of a fatal structure."""
        now = time.monotonic()
        structures = self._intake.structures
        structures.blame(self._core.client.suspects.keys)
        self.stats.forget_core()
        self._calls.fail(error)
        for request_id in self._output.request_ids():
            wanted = self._output.structure(request_id)
            if wanted is not None and (fault := structures.after_death(wanted)) is not None:
                self._fail(request_id, fault)
            elif self._output.retry(request_id, now):
                self.stats.retried += 1
            else:
                self._fail(request_id, error)

    def on_restored(self, ready: Ready) -> None:
        """Send the new core all requests that wait for it."""
        self.stats.restarts += 1
        self.on_new_core(ready)
        for message in self._output.messages():
            self._core.client.send(message)
            if (gone := self._adapters.removed(message)) is not None:
                self._calls.tell("remove_lora", gone)
        if self.num_unfinished:
            self._watch()

    def on_new_core(self, ready: Ready) -> None:
        """Take in what another core has said of itself."""
        self.stats.on_ready(ready.num_gpu_blocks)
        self.facts = ready.facts
        if self._intake.processor is None:
            self._intake.processor = InputProcessor(self.resolved, self.tokenizer, ready)
        else:
            self._intake.processor.on_ready(ready)

    def on_dead(self, error: QuireError) -> None:
        self._calls.fail(error)
        for request_id in self._output.request_ids():
            self._fail(request_id, error)

    def _fail(self, request_id: str, error: QuireError) -> None:
        """End a request that the core will not finish."""
        sink = self._output.sink(request_id)
        self._output.abort(request_id, time.monotonic(), str(error))
        if sink is not None:
            sink.fail(error)
