"""The asyncio front end: many requests at once, the core in a process of its own. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from quire.core.config import EngineArgs, ModelConfig
from quire.core.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.core.hardware import detect
from quire.core.log import setup_logging
from quire.core.messages import AbortRequests, Call, CallResult, Ready, StepOutputs
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.client import CoreClient, ProcessClient
from quire.engine.input import (
    InputProcessor,
    ProcessedRequest,
    Prompt,
    sampling_defaults,
)
from quire.engine.lag import LoopLag
from quire.engine.output import OutputProcessor
from quire.engine.profiling import ProfilingClient
from quire.engine.resolve import Resolved, load_tokenizer, resolve
from quire.engine.stats import EngineStats
from quire.engine.stream import OutputSink, OutputStream
from quire.engine.timeline import Timelines
from quire.engine.tokenizer_pool import TokenizerPool
from quire.engine.tokenizer_worker import ChatPrompt, tokenize
from quire.engine.tracing import request_tracer
from quire.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

INLINE_CHARACTERS = 4096
"""Longer prompts, and conversations, are left to the pool, not to hold up the event loop."""
TOKENIZER_THREADS = 2


class AsyncLLM:
    """Serves requests from the event loop it was started in.

        engine = await AsyncLLM.start(EngineArgs(model="embedded"))
        async for output in engine.generate("Once upon a time", SamplingParams()):
            ...
        engine.shutdown()

    Attributes:
        args: what the user wrote; `resolved` is what became of it.
        default_sampling_params: the model's own values for fields that a request leaves unset.
        phases: seconds spent in each part of the start, in order.
        facts: what the core runs on (see `messages.Ready`).
        profiling: the core's profilers.
    """

    def __init__(
        self, resolved: Resolved, tokenizer: Tokenizer, args: EngineArgs, client: CoreClient
    ) -> None:
        self.resolved = resolved
        self.args = args
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.default_sampling_params = sampling_defaults(resolved, args.generation_config)
        self.phases: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self._client = client
        self._tracer = request_tracer(args)
        self._output = OutputProcessor(tokenizer, self.stats, self._tracer)
        self._input: InputProcessor | None = None
        self._sinks: dict[str, OutputSink] = {}
        self._lag: LoopLag | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self.profiling = ProfilingClient(resolved.config.profiler, self.call)
        self._call_ids = itertools.count()
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, "tokenizer")
        self._pool: TokenizerPool | None = None
        self._turn = asyncio.Lock()
        self._num_arriving = 0
        self._error: QuireError | None = None

    @classmethod
    async def start(cls, args: EngineArgs, client: CoreClient | None = None) -> AsyncLLM:
        """Resolve the arguments, start the core and wait until its model is loaded.

        Raises:
            QuireError: whatever is wrong with the arguments, the model or the machine.
        """
        setup_logging()
        began = time.monotonic()
        resolved = resolve(args, detect())
        resolved_at = time.monotonic()
        tokenizer = load_tokenizer(resolved)
        tokenized_at = time.monotonic()
        for note in resolved.notes:
            logger.info(note)
        engine = cls(resolved, tokenizer, args, client or ProcessClient())
        engine.phases = {"resolve": resolved_at - began, "tokenizer": tokenized_at - resolved_at}
        if args.tokenizer_pool_size:
            engine.use_pool(
                TokenizerPool(
                    args.tokenizer_pool_size,
                    resolved.tokenizer_path,
                    resolved.config.model.vocab_size,
                )
            )
        await engine.start_core()
        return engine

    def use_pool(self, pool: TokenizerPool) -> None:
        """Have `pool` tokenize what would hold up the event loop; before `start_core`."""
        self._pool = pool

    async def start_core(self) -> Ready:
        """Start the core; `start` calls this."""
        began = time.monotonic()
        self.stats.front.watch_loop()
        self._lag = LoopLag(self.stats.event_loop_lag, lambda: self.num_unfinished > 0)
        try:
            if self._pool is not None:
                await self._pool.start()
            ready = await self._client.start(self.resolved.config, self._on_message, self._on_death)
        except BaseException:
            self.shutdown()
            raise
        spawn = time.monotonic() - began - sum(ready.phases.values())
        self.phases |= {"spawn": spawn, **ready.phases}
        self.facts = ready.facts
        try:
            self._input = InputProcessor(self.resolved, self.tokenizer, ready)
        except QuireError:
            self.shutdown()
            raise
        return ready

    @property
    def model_config(self) -> ModelConfig:
        return self.resolved.config.model

    @property
    def max_model_len(self) -> int:
        return self.resolved.config.scheduler.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """Most sequences of one step."""
        return self.resolved.config.scheduler.max_num_seqs

    @property
    def is_ready(self) -> bool:
        return self._input is not None and self._error is None

    @property
    def errored(self) -> bool:
        """Whether the core has died or was shut down; no request can be served any more."""
        return self._error is not None

    @property
    def timelines(self) -> Timelines:
        """What happened to the requests under way, and to the latest that have ended."""
        return self._output.timelines

    @property
    def num_unfinished(self) -> int:
        """Requests under way."""
        return self._output.num_unfinished

    @property
    def num_queued(self) -> int:
        """Sequences under way beyond those that one batch holds; less than 0: seats are free."""
        under_way = self._num_arriving + self._output.num_sequences
        return under_way - self.max_num_seqs

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request, as `sampling_params.output_kind` asks; the last is `finished`.

        Closing the generator, or cancelling the task that reads it, aborts the request. A
        consumer that is slower than the engine gets several steps in one output.

        Raises:
            InvalidRequestError: before anything is computed.
            EngineDeadError: the core has died.
        """
        params = sampling_params or SamplingParams(**self.default_sampling_params)
        request_id = request_id or uuid.uuid4().hex
        stream = OutputStream(params.output_kind)
        await self.submit(prompt, params, request_id, stream, priority, cache_salt, trace_headers)
        try:
            finished = False
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            self.close(request_id)

    async def submit(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        sink: OutputSink,
        priority: int = 0,
        cache_salt: str | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Start a request whose outputs go to `sink` at once, in the step that gives them.

        The caller must `close` it in the end, however it ends. Raises as `generate`, and there is
        nothing to close then.
        """
        self._num_arriving += sampling_params.n
        try:
            request = await self._process(request_id, prompt, sampling_params, priority, cache_salt)
        finally:
            self._num_arriving -= sampling_params.n
        if self._error is not None:
            raise self._error
        self._output.add(request, trace_headers)
        self._sinks[request_id] = sink
        try:
            for child in request.children:
                self._client.send(child)
        except BaseException:
            self.close(request_id)
            raise
        if self._lag is not None:
            self._lag.start()

    def close(self, request_id: str) -> None:
        """Forget a request, and abort it if it still runs; unknown ids are ignored."""
        self._sinks.pop(request_id, None)
        self._abort(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request; its consumer gets what there is, with finish reason "abort"."""
        self._abort(request_id)

    async def tokenize(self, prompt: str | ChatPrompt, add_special_tokens: bool) -> list[int]:
        """A prompt's tokens, off the event loop; of a conversation the template writes them all."""
        if self._pool is not None and (isinstance(prompt, ChatPrompt) or add_special_tokens):
            return (await self._pool.tokenize(prompt)).token_ids
        work = partial(tokenize, self.tokenizer, prompt)
        if isinstance(prompt, str):
            work = partial(self.tokenizer.encode, prompt, add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def call(self, method: str, *args: Any) -> Any:
        """Run one of the core's utility methods, between two steps.

        Raises:
            InvalidRequestError: the method failed.
        """
        call_id = next(self._call_ids)
        result = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._client.send(Call(call_id, method, list(args)))
            return await result
        finally:
            del self._calls[call_id]

    async def start_profile(self) -> None:
        await self.profiling.start()

    async def stop_profile(self) -> list[str]:
        return await self.profiling.stop()

    def shutdown(self) -> None:
        """Stop the core; requests under way fail. Harmless when repeated."""
        self._on_death(EngineDeadError("The engine has been shut down."))
        if self._lag is not None:
            self._lag.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown()
        self._client.shutdown()
        if self._tracer is not None:
            self._tracer.shutdown()

    async def _process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        cache_salt: str | None,
    ) -> ProcessedRequest:
        if self._error is not None:
            raise self._error
        assert self._input is not None, "the engine was not started"
        processor, arrival = self._input, time.monotonic()
        wanted = params.structured_outputs
        if wanted is not None and not processor.knows_structure(wanted):
            await asyncio.get_running_loop().run_in_executor(
                self._threads, processor.check_structure, wanted
            )

        if self._pool is not None and _is_long(prompt):
            checked = processor.checked(prompt)
            assert not isinstance(checked, list)
            tokenized = await self._pool.tokenize(checked)
            self.stats.front.add_tokenize(tokenized.seconds)
            return processor.request(
                request_id,
                checked if isinstance(checked, str) else None,
                tokenized.token_ids,
                params,
                arrival_time=arrival,
                priority=priority,
                cache_salt=cache_salt,
            )

        def process() -> ProcessedRequest:
            with self.stats.front.tokenizing():
                return processor.process(
                    request_id,
                    prompt,
                    params,
                    arrival_time=arrival,
                    priority=priority,
                    cache_salt=cache_salt,
                )

        if _is_long(prompt):
            return await asyncio.get_running_loop().run_in_executor(self._threads, process)
        # One a turn of the loop, in order: of many that arrive together, the first have their
        # tokens streamed before the last are tokenized.
        async with self._turn:
            request = process()
            await asyncio.sleep(0)
        return request

    def _abort(self, request_id: str) -> None:
        ids, output = self._output.abort(request_id, time.monotonic())
        if ids:
            with contextlib.suppress(EngineDeadError):
                self._client.send(AbortRequests(ids))
        if output is not None and request_id in self._sinks:
            self._sinks[request_id].put(output)

    def _on_message(self, message: StepOutputs | CallResult) -> None:
        if isinstance(message, CallResult):
            self._on_result(message)
            return
        front = self.stats.front
        start = time.thread_time()
        step = self._output.process(message)
        processed = time.thread_time()
        if step.aborts:
            self._client.send(AbortRequests(step.aborts))
        for output in step.outputs:
            if sink := self._sinks.get(output.request_id):
                sink.put(output)
        front.detokenize += processed - start
        front.send += time.thread_time() - processed

    def _on_result(self, message: CallResult) -> None:
        future = self._calls.get(message.call_id)
        if future is None or future.done():
            return
        if message.error is not None:
            future.set_exception(InvalidRequestError(message.error))
        else:
            future.set_result(message.value)

    def _on_death(self, error: QuireError) -> None:
        if self._error is not None:
            return
        self._error = error
        for sink in self._sinks.values():
            sink.fail(error)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)


def _is_long(prompt: Prompt) -> bool:
    """Whether it may take longer to tokenize than the event loop should be held up."""
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return isinstance(text, ChatPrompt) or (isinstance(text, str) and len(text) > INLINE_CHARACTERS)
