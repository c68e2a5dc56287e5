"""`AsyncLLM`: the asyncio engine with more methods, most under vLLM's names. No torch."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import cache

from quire.core.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.core.lora import LoRARequest
from quire.core.options import RequestOptions
from quire.core.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.async_engine import AsyncEngine
from quire.frontend.client.configure import Configured, configure
from quire.frontend.client.start import begin, start
from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.pooling_task import check_task
from quire.frontend.input.prompts import Countable, Prompt
from quire.frontend.not_there import NotThere
from quire.frontend.output.position import with_dicts
from quire.frontend.output.stream import OutputStream
from quire.resolve.arguments import EngineArgs
from quire.text.tokenizers.user_tokenizer import UserTokenizer


class AsyncLLM(NotThere, AsyncEngine):
    """Serves requests from the event loop it was started in.

        engine = await AsyncLLM.start(EngineArgs(model="embedded"))
        async for output in engine.generate("Once upon a time", SamplingParams()):
            ...
        engine.shutdown()

    `AsyncEngine` has the attributes.
    """

    @classmethod
    async def start(cls, args: EngineArgs, configured: Configured | None = None) -> AsyncLLM:
        """Resolve the arguments, start the core and wait until its model is loaded.

        Args:
            configured: a core that loads its model already, with the configuration of `args`.

        Raises:
            QuireError: the arguments, the model or the machine are unsuitable.
        """
        return await start(cls, args, configured or configure(args))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Return an engine at once. Its core loads the model; the first use waits for it.

        Raises:
            QuireError: the arguments or the model's files are wrong.
        """
        configured = configure(engine_args)
        engine = begin(cls, engine_args, configured).engine
        begun = configured.resolved_at
        engine._late_start = cache(lambda: asyncio.ensure_future(engine.start_core(begun)))
        return engine

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        trace_headers: Mapping[str, str] | None = None,
        lora_request: LoRARequest | None = None,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield a request's outputs, as `sampling_params.output_kind` says; the last is `finished`.

        Closing the generator, or cancelling the task that reads it, aborts the request. A slow
        consumer gets several steps in one output. An unknown adapter is loaded first.
        `data_parallel_rank` names the replica that computes it; None lets the router choose.

        Raises:
            InvalidRequestError: the request cannot be served; nothing was computed.
            EngineDeadError: the core has died.
        """
        params = sampling_params or SamplingParams(**self.default_sampling_params)
        request_id = request_id or uuid.uuid4().hex
        stream = OutputStream(params.output_kind)
        headers = dict(trace_headers) if trace_headers else None
        options = RequestOptions(
            priority, cache_salt, lora_request, headers, data_parallel_rank=data_parallel_rank
        )
        await self.submit(prompt, params, request_id, stream, options)
        try:
            finished = False
            while not finished:
                output = with_dicts(await stream.get())
                finished = output.finished
                yield output
        finally:
            self.close(request_id, stream)

    async def encode(
        self,
        prompt: PoolingPrompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Yield a pooling model's one output for a prompt; raises as `generate`."""
        params = pooling_params or PoolingParams()
        from quire.frontend.output.pooling_output import pooled_output

        config = check_task(self.resolved.config.pooling, "score")
        request_id = request_id or uuid.uuid4().hex
        stream = OutputStream(RequestOutputKind.FINAL_ONLY)
        headers = dict(trace_headers) if trace_headers else None
        options = RequestOptions(priority, trace_headers=headers)
        await self.submit(prompt, params, request_id, stream, options)
        try:
            yield pooled_output(config, params, await stream.get())
        finally:
            self.close(request_id, stream)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their consumers get the output so far, with finish reason "abort"."""
        for each in [request_id] if isinstance(request_id, str) else request_id:
            self._abort(each)

    def abort_all(self) -> None:
        for request_id in self._output.request_ids():
            self._abort(request_id)

    @property
    def max_total_tokens(self) -> int:
        """Return the most tokens of a prompt and its answer: the context or the KV cache."""
        processor = self._intake.processor
        return self.max_model_len if processor is None else processor.max_total_tokens

    @property
    def stepped(self) -> asyncio.Event:
        """Return an event that is set after each step and each loss of a core."""
        return self._fleet.stepped

    @property
    def is_running(self) -> bool:
        """Return whether the engine accepts requests, now or once it is awake."""
        return not self.errored

    @property
    def errored(self) -> bool:
        return self.error is not None and not self._asleep

    @property
    def dead_error(self) -> QuireError:
        return self.error or EngineDeadError("The engine has stopped.")

    async def check_health(self) -> None:
        """Raise the engine's error, if it has one. A sleeping engine has none."""
        if self.errored:
            raise self.dead_error

    async def tokenize(self, prompt: Countable, add_special_tokens: bool) -> list[int]:
        """Return a prompt's token ids, computed off the event loop."""
        return await self._intake.tokenize(self.tokenizer, prompt, add_special_tokens)

    async def check_structure(self, wanted: StructuredOutputsParams) -> None:
        """Raise the error that `submit` would raise for this structure."""
        await self._intake.structures.check(wanted)

    async def get_tokenizer(self) -> UserTokenizer:
        return UserTokenizer(self.tokenizer)

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache and return True."""
        await self.call("reset_prefix_cache")
        return True

    async def add_lora(self, lora_request: LoRARequest) -> LoRARequest:
        """Load an adapter; see `AdapterClient.add`."""
        return await self._adapters.add(lora_request)

    async def remove_lora(self, lora_int_id: int) -> bool:
        """Refuse further requests for an adapter; see `AdapterClient.remove`."""
        return await self._adapters.remove(lora_int_id)

    async def start_profile(self) -> None:
        await self.profiling.start()

    async def stop_profile(self) -> list[str]:
        return await self.profiling.stop()

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Free the weights and the KV cache until `wake_up`. Requests raise meanwhile.

        Args:
            level: 1 or 2. Both do the same: `wake_up` reads the weights from the model's files.
            mode: "abort" ends running requests with finish reason "abort".

        Raises:
            InvalidRequestError: there is no such level or mode.
            EngineDeadError: the engine is not ready.
        """
        if mode != "abort":
            raise InvalidRequestError(
                f"mode is {mode!r}; only 'abort' is supported.",
                fix="Wait for the requests in progress, then sleep.",
                param="mode",
            )
        await self._started()
        async with self._asleep.lock:
            if self._asleep:
                return
            if self.error is not None:
                raise self.error
            self._asleep.begin(level)
            self.abort_all()
            await self._fleet.sleep()
            for replica in range(len(self._fleet.replicas)):
                self.stats.of(replica).forget_core()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model again, with an empty KV cache. Answers do not change.

        Args:
            tags: "weights", "kv_cache"; both if None. The model is loaded once both are awake.

        Raises:
            QuireError: the model cannot be loaded; the engine stays asleep.
        """
        async with self._asleep.lock:
            if not self._asleep.end(tags):
                return
            try:
                for replica, ready in enumerate(await self._fleet.wake_up()):
                    self.on_new_core(replica, ready)
            except BaseException:
                self._asleep.begin(1)
                raise

    async def is_sleeping(self) -> bool:
        return bool(self._asleep)
