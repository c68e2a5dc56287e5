"""The engine in this process: add requests, compute one step, take its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quire.core.errors import InvalidRequestError
from quire.core.log import setup_logging
from quire.core.lora import LoRARequest
from quire.core.model_config import ModelConfig
from quire.core.options import RequestOptions
from quire.core.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client.configure import configure
from quire.frontend.client.in_process import InProcessClient
from quire.frontend.client.start import begin
from quire.frontend.input.input_processor import InputProcessor
from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.pooling_task import check_task
from quire.frontend.input.prompts import Prompt
from quire.frontend.not_there import NotThere
from quire.frontend.output.pooling_output import pooled_output
from quire.frontend.output.position import with_dicts
from quire.frontend.sync_loop import SyncLoop
from quire.resolve.arguments import EngineArgs
from quire.text.tokenizers.user_tokenizer import UserTokenizer

if TYPE_CHECKING:
    from quire.engine.core import EngineCore
    from quire.metrics.reader import Metric

EngineOutput = RequestOutput | PoolingRequestOutput[PoolingOutput]


class _Outputs:
    """Collects the outputs of all requests until the step has ended."""

    def __init__(self) -> None:
        self._waiting: list[RequestOutput] = []
        self._error: Exception | None = None

    def put(self, output: RequestOutput) -> None:
        self._waiting.append(output)

    def fail(self, error: Exception) -> None:
        self._error = error

    def take(self) -> list[RequestOutput]:
        """Return the outputs since the last call. Raises the error of a request that failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        taken, self._waiting = self._waiting, []
        return [*map(with_dicts, taken)]


class RemoteSteps:
    """Waits for steps where `InProcessClient` computes them. Several cores step at the same time.

    Args:
        loop: the one that `engine` was started in.
    """

    def __init__(self, engine: AsyncLLM, loop: SyncLoop) -> None:
        self._engine = engine
        self._loop = loop

    def step(self) -> bool:
        """Wait until a core has reported a step; return False if there is no work.

        A step that was reported since the last call counts.
        """
        stepped = self._engine.stepped
        if not (self._engine.num_unfinished or stepped.is_set()):
            return False
        self._loop.run(stepped.wait())
        stepped.clear()
        return True

    def rest(self) -> None:
        """Do nothing: the cores measure their idle time."""


class LLMEngine(NotThere):
    """A model in this process, stepped by one thread: `AsyncLLM` without its event loop.

        engine = LLMEngine.from_engine_args(EngineArgs(model="embedded"))
        engine.add_request("a", "Once upon a time", SamplingParams())
        while engine.has_unfinished_requests():
            outputs = engine.step()
        engine.shutdown()

    Attributes:
        args: the user's arguments; `resolved` is the configuration made from them.
        stats: the engine's counters since its start.
        phases: seconds spent in each part of the start, in order.

    Raises:
        QuireError: the arguments, the model or the machine are unsuitable.
    """

    def __init__(self, args: EngineArgs) -> None:
        setup_logging()
        self.args = args
        core = InProcessClient() if len(args.replicas) == 1 else None
        configured = configure(args, core)
        begun = begin(AsyncLLM, args, configured, (lambda: core) if core else None)
        self._engine = begun.engine
        self._loop = SyncLoop()
        self._steps = core or RemoteSteps(self._engine, self._loop)
        self._outputs = _Outputs()
        self._pooling_params: dict[str, PoolingParams] = {}
        try:
            ready = self._loop.run(self._engine.start_core())
        except BaseException:
            self._loop.close()
            raise
        self.resolved = self._engine.resolved
        self.tokenizer = self._engine.tokenizer
        self.stats = self._engine.stats
        self.sampling_defaults = self._engine.default_sampling_params
        self.phases = {
            "resolve": configured.resolved_at - configured.began,
            "tokenizer": begun.tokenizer_seconds,
            **ready.phases,
        }

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        return LLMEngine(engine_args)

    @property
    def model_config(self) -> ModelConfig:
        return self.resolved.config.model

    @property
    def facts(self) -> dict[str, Any]:
        """Return the core's hardware and backend (see `messages.Ready`)."""
        return self._engine.facts

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
        """Queue a request; `step` returns its outputs, as `params.output_kind` says.

        Args:
            arrival_time: on the monotonic clock; now if None.

        Raises:
            InvalidRequestError: the request cannot be served, or its id is in use.
        """
        headers = dict(trace_headers) if trace_headers else None
        options = RequestOptions(priority, None, lora_request, headers, arrival_time)
        self._loop.run(self._engine.submit(prompt, params, request_id, self._outputs, options))
        if isinstance(params, PoolingParams):
            self._pooling_params[request_id] = params

    def step(self) -> Sequence[EngineOutput]:
        """Compute one step and return its outputs; an empty list if there is no work."""
        self._check_awake()
        self._steps.step()
        return [self._finished(output) for output in self._outputs.take()]

    def has_unfinished_requests(self) -> bool:
        return self._engine.num_unfinished > 0

    def get_num_unfinished_requests(self) -> int:
        return self._engine.num_unfinished

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """End requests without another output; ignore unknown ids."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self._pooling_params.pop(request_id, None)
            self._engine.close(request_id)

    # -- the engine as a whole ------------------------------------------------------------

    def call(self, method: str, *args: Any) -> Any:
        """Run one of the core's utility methods."""
        return self._loop.run(self._engine.call(method, *args))

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache and return True."""
        return self._loop.run(self._engine.reset_prefix_cache())

    def get_metrics(self) -> list[Metric]:
        """Return the engine's counters, under the names of `GET /metrics`."""
        from quire.metrics.reader import read_metrics

        return read_metrics(self.stats, self.args.model)

    def sleep(self, level: int = 1) -> None:
        """Free the weights and the KV cache until `wake_up`. Requests raise meanwhile.

        Args:
            level: 1 or 2. Both do the same: `wake_up` reads the weights from the model's files.

        Raises:
            InvalidRequestError: requests are running.
        """
        if running := self._engine.num_unfinished:
            raise InvalidRequestError(
                f"{running} requests are in progress, and sleep would end them.",
                fix="Let them finish, or abort them.",
            )
        self._loop.run(self._engine.sleep(level))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Load the model again, with an empty KV cache. Answers do not change.

        Args:
            tags: "weights", "kv_cache"; both if None. The model is loaded once both are awake.

        Raises:
            OutOfMemoryError: other processes have taken the memory meanwhile.
        """
        self._loop.run(self._engine.wake_up(tags))

    def is_sleeping(self) -> bool:
        return self._loop.run(self._engine.is_sleeping())

    def start_profile(self) -> None:
        """Start recording steps, as `profiler_config` says; do nothing if it runs already."""
        self._loop.run(self._engine.start_profile())

    def stop_profile(self) -> list[Path]:
        """End the recording, wait for its files and return their paths.

        Raises:
            QuireError: the trace could not be written.
        """
        files = self._loop.run(self._engine.stop_profile())
        return [self.resolved.config.profiler.folder / file for file in files]

    def shutdown(self) -> None:
        """Free the model and the KV cache. Harmless when repeated."""
        self._engine.shutdown()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # -- parts that `LLM` uses ------------------------------------------------------------

    @property
    def _core(self) -> EngineCore:
        assert isinstance(self._steps, InProcessClient), "replicas have their own processes"
        return self._steps.core

    @property
    def _input(self) -> InputProcessor:
        return self._engine.input_processor

    def _check_awake(self) -> None:
        if self._engine.error is not None:
            raise self._engine.error

    def _finished(self, output: RequestOutput) -> EngineOutput:
        params = self._pooling_params.pop(output.request_id, None)
        if params is None:
            return output
        return pooled_output(check_task(self.resolved.config.pooling, "score"), params, output)
