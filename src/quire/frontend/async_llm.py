"""The asyncio front end: many concurrent requests, the core in its own process. No torch."""

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
from quire.frontend.client.configure import Configured, configure
from quire.frontend.client.core_client import CoreClient, ProcessClient
from quire.frontend.client.profiling import ProfilingClient
from quire.frontend.client.start import begin, start
from quire.frontend.client.supervisor import Supervisor
from quire.frontend.client.watchdog import TICKS, Watchdog
from quire.frontend.images.fetch import Media
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
from quire.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DRAIN_POLL_SECONDS = 0.02


class AsyncLLM(VllmMethods):
    """Serves requests from the event loop it was started in.

        engine = await AsyncLLM.start(EngineArgs(model="embedded"))
        async for output in engine.generate("Once upon a time", SamplingParams()):
            ...
        engine.shutdown()

    Attributes:
        args: the user's arguments; `resolved` is the configuration made from them.
        default_sampling_params: the model's own values for unset sampling fields.
        phases: seconds that the start waited for each of its parts, in order.
        beside: seconds of the parts that ran in parallel to `phases`.
        facts: hardware and backend of the core (see `messages.Ready`).
        draining: whether `drain` was called.
        profiling: the core's profilers.
        timelines: events of the running requests and of those that ended last.
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
        self.stats.in_flight = lambda: self._output.num_unfinished
        if (lora := resolved.config.lora) is not None:
            self.stats.max_loras, self.stats.adapters = lora.max_loras, self._output.adapters
        media = Media(args.allowed_media_domains or "", args.allowed_local_media_path)
        self._intake = Intake(self.stats.front, tokenizer, self.model_config, pool, media)
        self._watchdog: Watchdog | None = None
        self._timers: list[LoopLag | Watchdog] = []
        self._calls = CoreCalls(self._send_call)
        self.profiling = ProfilingClient(self.call)
        self._adapters = AdapterClient(resolved.config, self.call)

    @classmethod
    async def start(cls, args: EngineArgs, configured: Configured | None = None) -> AsyncLLM:
        """Resolve the arguments, start the core and wait until its model is loaded.

        Args:
            configured: a core that loads its model already, with the configuration of `args`.

        Raises:
            QuireError: the arguments, the model or the machine are unsuitable.
        """
        return await start(cls, args, configured or configure(args, ProcessClient.begun()))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Return an engine at once. Its core loads the model; the first use waits for it.

        Raises:
            QuireError: the arguments or the model's files are wrong.
        """
        configured = configure(engine_args, ProcessClient.begun())
        engine = begin(cls, engine_args, configured).engine
        engine._late_start = LateStart(lambda: engine.start_core(configured.resolved_at))
        return engine

    async def start_core(self, configured: float | None = None) -> Ready:
        """Start the core, configured at that time (now if None), and wait until it is ready."""
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
        """Start measuring the event loop's lag and watching for a stuck core."""
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
        """Return the most tokens of a prompt and its answer: the context or the KV cache."""
        processor = self._intake.processor
        return self.max_model_len if processor is None else processor.max_total_tokens

    @property
    def input_processor(self) -> InputProcessor:
        """Return the input processor, which exists once the core is ready."""
        assert self._intake.processor is not None
        return self._intake.processor

    @property
    def is_ready(self) -> bool:
        """Return whether the engine accepts requests: its core is ready, `drain` was not called."""
        return self._intake.processor is not None and self.error is None and not self.draining

    @property
    def error(self) -> QuireError | None:
        """Return `EngineRestartingError` while a lost core is replaced, a final error, or None."""
        return self._core.error

    @property
    def num_unfinished(self) -> int:
        """Return the number of requests that have not ended."""
        return self._output.num_unfinished

    @property
    def num_queued(self) -> int:
        """Return how many sequences exceed one batch; negative while the batch has free rows."""
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
        """Start a request that sends its outputs to `sink`; return its number of prompt tokens.

        A pooling model sends one output, with `pooled`; `pooling_output` finishes it. The caller
        must `close` the request in the end, unless this raises. Raises what `generate` raises.
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
            self._adapters.find(adapter)  # raises if it was removed meanwhile
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
        """Remove a request, and abort it if it still runs; ignore unknown ids.

        With `sink`, a newer request of the same id is left alone.
        """
        if sink is None or self._output.sink(request_id) is sink:
            self._end(request_id)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and let the running ones end; abort them after `seconds`."""
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
        """Return a prompt's token ids, computed off the event loop.

        `add_special_tokens` does not matter for a conversation: its template writes them.
        """
        return await self._intake.tokenize(self.tokenizer, prompt, add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of tokens, control tokens included, computed off the event loop."""
        return await self._intake.detokenize(self.tokenizer, token_ids)

    async def check_structure(self, wanted: StructuredOutputsParams) -> None:
        """Raise the error that `submit` would raise for this structure."""
        await self._intake.structures.check(wanted)

    def shutdown(self) -> None:
        """Stop the core and fail all running requests. Harmless when repeated."""
        self._core.shutdown()
        for timer in self._timers:
            timer.stop()
        self._intake.shutdown()
        if self._tracer is not None:
            self._tracer.shutdown()

    def _end(self, request_id: str) -> RequestOutput | None:
        """Remove a request here and from the core; return its last output if it was known."""
        ids, output = self._output.abort(request_id, time.monotonic())
        if ids:
            with contextlib.suppress(EngineDeadError):
                self._core.client.send(AbortRequests(ids))
        return output

    def _abort(self, request_id: str) -> None:
        """End a request; its consumer gets the output so far."""
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
        """Start the timers, which run while there is work."""
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
        """Retry requests without outputs; fail all others, and those with a bad structure."""
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
        """Send the new core all waiting requests."""
        self.stats.restarts += 1
        self.on_new_core(ready)
        for message in self._output.messages():
            self._core.client.send(message)
            if (gone := self._adapters.removed(message)) is not None:
                self._calls.tell("remove_lora", gone)
        if self.num_unfinished:
            self._watch()

    def on_new_core(self, ready: Ready) -> None:
        """Store the facts of a core that has become ready."""
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
        """End a request with `error`, because the core will not finish it."""
        sink = self._output.sink(request_id)
        self._output.abort(request_id, time.monotonic(), str(error))
        if sink is not None:
            sink.fail(error)
