"""The asyncio engine: many concurrent requests, the core in its own process. No torch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from quire.core.errors import EngineDeadError, QuireError
from quire.core.messages import CallResult, Ready, StepOutputs
from quire.core.model_config import ModelConfig
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.outputs import RequestOutput
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.frontend.client.asleep import Asleep
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.client.fleet import Fleet
from quire.frontend.client.interface import CoreClient
from quire.frontend.client.profiling import ProfilingClient
from quire.frontend.client.standby import FarCores
from quire.frontend.images.reader import ImageReader
from quire.frontend.input.input_processor import InputProcessor
from quire.frontend.input.intake import Intake
from quire.frontend.input.known_adapters import AdapterClient
from quire.frontend.input.pooling_input import PoolingPrompt
from quire.frontend.input.prompts import Prompt
from quire.frontend.input.served_model import sampling_defaults
from quire.frontend.lag import LoopLag
from quire.frontend.output.output_processor import OutputProcessor
from quire.frontend.output.request_state import RequestState
from quire.frontend.output.stream import OutputSink
from quire.frontend.output.tracing import request_tracer
from quire.frontend.workers.pool import CLIENT
from quire.frontend.workers.tokenizer_pool import TokenizerPool
from quire.metrics.replica_stats import engine_stats
from quire.parallel.shared_memory import SharedFile
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved
from quire.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DRAIN_POLL_SECONDS = 0.02


class AsyncEngine:
    """Serves requests from the event loop it was started in; see `AsyncLLM`.

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
        memory: SharedFile | None = None,
        gate: FarCores | None = None,
    ) -> None:
        self.resolved = resolved
        self.args = args
        self.tokenizer = tokenizer
        self.stats = engine_stats(args.replicas, resolved.config.block_size)
        self.default_sampling_params = sampling_defaults(resolved)
        self.phases: dict[str, float] = {}
        self.beside: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.draining = False
        self._late_start: Callable[[], asyncio.Future[Any]] | None = None
        self._asleep = Asleep()
        self._fleet = Fleet(connect, resolved.config, self, args.replicas, first, memory, gate)
        self._tracer = request_tracer(args)
        self._output = OutputProcessor(tokenizer, self.stats, self._tracer)
        self.timelines = self._output.timelines
        if (lora := resolved.config.lora) is not None:
            self.stats.max_loras, self.stats.adapters = lora.max_loras, self._output.adapters
        images = ImageReader(resolved.config, args, self.stats.front)
        self._intake = Intake(self.stats.front, tokenizer, self.model_config, images, pool)
        self.stats.sequences = lambda: self._intake.num_arriving + self._output.num_sequences
        self._num_blocks: dict[int, int] = {}
        self._lag: LoopLag | None = None
        self.profiling = ProfilingClient(self.call)
        self._adapters = AdapterClient(resolved.config, self.call)

    async def start_core(self, configured: float | None = None) -> Ready:
        """Start the cores, the first configured at that time (now if None); wait for all.

        Returns:
            The report of the core that took longest.
        """
        configured = configured or time.monotonic()
        if self._fleet.separate:  # measure the event loop's lag, and watch for stuck cores
            self.stats.front.watch_loop()
            self._lag = LoopLag(self.stats.event_loop_lag, lambda: self.num_unfinished > 0)
            self._fleet.watch(self.resolved.config.step_timeout)
        try:
            await self._intake.start()
            started = await self._fleet.start()
            for replica, ready in enumerate(started):
                self.on_new_core(replica, ready)
        except BaseException:
            self.shutdown()
            raise
        slowest = max(started, key=lambda ready: ready.began + sum(ready.phases.values()))
        self.phases = {"spawn": max(0.0, slowest.began - configured), **slowest.phases}
        return slowest

    async def _started(self) -> None:
        """Wait for the start if the first use begins it; raises what the start raises."""
        if self._late_start is not None:
            await asyncio.shield(self._late_start())  # one cancelled caller must not cancel it
            self._late_start = None

    @property
    def model_config(self) -> ModelConfig:
        return self.resolved.config.model

    @property
    def max_model_len(self) -> int:
        return self.resolved.config.scheduler.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """Return the most sequences of one step, in all replicas together."""
        return len(self._fleet.replicas) * self.resolved.config.scheduler.max_num_seqs

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
        """Return `EngineRestartingError` while no core is ready, a final error, or None."""
        return self._fleet.error

    @property
    def num_unfinished(self) -> int:
        """Return the number of requests that have not ended."""
        return self._output.num_unfinished

    @property
    def num_queued(self) -> int:
        """Return how many sequences exceed one batch; negative while the batch has free rows."""
        arriving = self._intake.num_arriving + self._intake.num_abandoned
        return arriving + self._output.num_sequences - self.max_num_seqs

    def by_client(self) -> Counter[str]:
        """Return how many sequences of each client run, wait or arrive."""
        return self._output.by_client + self._intake.arriving

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
        await self._started()
        if (error := self._fleet.error) is not None:
            raise error
        self._fleet.check_rank(options.data_parallel_rank)
        options = replace(options, client=CLIENT.get())
        if (adapter := options.lora_request) is not None:
            adapter = await self._adapters.add(adapter)
            options = replace(options, lora_request=adapter)
        request = await self._intake.process(request_id, prompt, params, options)
        if adapter is not None:
            self._adapters.find(adapter)  # raises if it was removed meanwhile
        state = self._output.add(request, sink)
        try:
            self._send(state, options.data_parallel_rank)
        except BaseException:
            self.close(request_id)
            raise
        return len(request.prompt_token_ids)

    def close(self, request_id: str, sink: OutputSink | None = None) -> None:
        """Remove a request, and abort it if it still runs; ignore unknown ids, and with `sink` a
        newer request of the same id."""
        if sink is None or self._output.sink(request_id) is sink:
            self._end(request_id)

    async def call(self, method: str, *args: Any) -> Any:
        """Run one of the core's utility methods, between two steps.

        Raises:
            InvalidRequestError: the method failed.
        """
        await self._started()
        return await self._fleet.call(method, *args)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and let the running ones end; abort them after `seconds`."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self.num_unfinished or self._intake.num_arriving:
            if time.monotonic() >= deadline:
                self._fail_all(EngineDeadError("The server is shutting down."))
                self._intake.shutdown()
                self._fleet.hurry()
                break
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def shutdown(self) -> None:
        """Stop the core and fail all running requests. Harmless when repeated."""
        self._fleet.shutdown()
        if self._lag is not None:
            self._lag.stop()
        self._intake.shutdown()
        if self._tracer is not None:
            self._tracer.shutdown()

    def _end(self, request_id: str) -> RequestOutput | None:
        """Remove a request here and from its core; return its last output if it was known."""
        state = self._output.state(request_id)
        ids, output = self._output.abort(request_id, time.monotonic())
        if state is not None and ids:
            self._fleet.abort(state.replica, ids)
        return output

    def _abort(self, request_id: str) -> None:
        """End a request; its consumer gets the output so far."""
        sink = self._output.sink(request_id)
        output = self._end(request_id)
        if sink is not None and output is not None:
            sink.put(output)

    def _send(self, state: RequestState, rank: int | None = None) -> None:
        """Send a request to the replica `rank`, or to the one that the router chooses."""
        replica, messages = self._fleet.choose(state, rank)
        for message in messages:
            replica.client.send(message)
        if self._lag is not None:
            self._lag.start()

    def on_message(self, replica: int, message: StepOutputs | CallResult) -> None:
        """See `FleetUser`."""
        if (step := self._fleet.read(replica, message)) is not None:
            for reply in self._output.process(step, replica).replies():
                self._fleet.send(replica, reply)

    def has_work(self, replica: int) -> bool:
        """See `ReplicaUser`."""
        return bool(self._output.states(replica))

    def on_lost(self, replica: int, error: QuireError) -> None:
        """Move requests to another replica, or let them wait for the next core if they have no
        outputs yet; fail all others, those with a bad structure, and those that moved before."""
        now, ready = time.monotonic(), self._fleet.error is None
        structures = self._intake.structures
        structures.blame(self._fleet.replicas[replica].client.suspects.keys)
        self.stats.of(replica).forget_core()
        for state in self._output.states(replica):
            request_id, wanted = state.request.request_id, state.request.params.structured_outputs
            if wanted is not None and (fault := structures.after_death(wanted)) is not None:
                self._fail(request_id, fault)
            elif self._output.retry(request_id, now, ready=ready):
                self.stats.of(replica).count_retry()
                if ready:
                    self._send_again(state)
            else:
                self._fail(request_id, error)

    def on_restored(self, replica: int, ready: Ready) -> None:
        """Send all requests that wait for a core; the router chooses among the ready ones."""
        self.stats.of(replica).count_restart()
        self.on_new_core(replica, ready)
        for state in self._output.states():
            if state.replica != replica and self._fleet.replicas[state.replica].is_ready:
                continue  # it runs
            self._send_again(state)

    def _send_again(self, state: RequestState) -> None:
        """Send a request of a lost core; an adapter that was removed since goes when it ends."""
        self._send(state)
        if (gone := self._adapters.removed(state.request.children[0])) is not None:
            self._fleet.tell("remove_lora", gone)

    def on_new_core(self, replica: int, ready: Ready) -> None:
        """Store the facts of a core that has become ready. The smallest KV cache limits requests:
        each may have to move to any replica."""
        self.stats.of(replica).on_ready(ready.num_gpu_blocks)
        self.facts = ready.facts
        self._num_blocks[replica] = ready.num_gpu_blocks
        ready = replace(ready, num_gpu_blocks=min(self._num_blocks.values()))
        if self._intake.processor is None:
            self._intake.processor = InputProcessor(self.resolved, self.tokenizer, ready)
        else:
            self._intake.processor.on_ready(ready)

    def on_dead(self, replica: int, error: QuireError) -> None:
        """Fail all requests if no core is left; otherwise they have moved or wait for another."""
        if self._fleet.is_dead:
            self._fail_all(error)

    def _fail_all(self, error: QuireError) -> None:
        for request_id in self._output.request_ids():
            self._fail(request_id, error)

    def _fail(self, request_id: str, error: QuireError) -> None:
        """End a request with `error`, because the core will not finish it."""
        sink = self._output.sink(request_id)
        self._output.abort(request_id, time.monotonic(), str(error))
        if sink is not None:
            sink.fail(error)
