"""The engine core: schedule, execute, update. Runs in its own process, or inside `LLM`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, InvalidRequestError, reason_of
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    BlockChanges,
    BlocksLent,
    BlocksReturned,
    Call,
    CallResult,
    CoreOutput,
    CoreTimes,
    Ready,
    SchedulerStats,
    StepOutputs,
)
from quire.core.options import NO_INPUTS, RequestInputs
from quire.core.request import FinishReason, Request
from quire.engine.compiling import Compiling
from quire.engine.handoff import HandOff
from quire.engine.isolate import compute_apart
from quire.engine.kv_events import KVEventPublisher
from quire.engine.scheduling import new_scheduler
from quire.executor.base import Executor, ForwardError, Pending, Prepare, error_text
from quire.kv.snapshot import kv_snapshot
from quire.system.stopwatch import Stopwatch

logger = logging.getLogger(__name__)


class _InFlight(NamedTuple):
    """A scheduled step whose result was not processed yet.

    Attributes:
        wait: computes the step, or waits for its result.
        submitted: set if the executor has begun the step.
    """

    batch: SchedulerOutput
    wait: Callable[[], ModelOutput]
    submitted: Pending | None = None


class EngineCore:
    """Computes requests step by step.

    Args:
        executor: not started yet; it loads the model here.
        clock: returns seconds on a monotonic clock; a simulation passes its own.
        events: publishes the changes of the prefix cache; closed by `shutdown`.

    Attributes:
        watch: measures the time of the core's thread (see `CoreTimes`). `step` counts the time
            since the last lap as "receive"; the caller measures the rest.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        events: KVEventPublisher | None = None,
    ) -> None:
        self.config = config
        self._events = events
        self.executor = executor
        self._clock = clock
        executor.start()
        self.watch = Stopwatch(clock)
        self.scheduler = new_scheduler(config, executor, publishes=events is not None)
        loans = self.scheduler.kv.loans
        self._handoff = HandOff(config.transfer, executor.lower_tiers, clock, loans)
        self._in_flight: deque[_InFlight] = deque()
        self._compiling = Compiling()
        self._rejected: list[CoreOutput] = []
        self._retired: set[int] = set()
        """Unloaded adapters that are still in use."""
        self._last_inputs = NO_INPUTS

    def ready(self) -> Ready:
        """Return the message to the front end once the model is loaded."""
        return Ready(
            num_gpu_blocks=self.executor.num_blocks,
            block_size=self.config.block_size,
            phases=self.executor.phases,
            facts=self.executor.facts,
        )

    def handle(
        self, message: AddRequest | AbortRequests | BlocksLent | BlocksReturned | Call
    ) -> StepOutputs | CallResult | None:
        """Process a message; return its answer, if that does not come with the next step."""
        match message:
            case AddRequest():
                self.add(message)
            case BlocksLent() | BlocksReturned():
                self._handoff.note(message)
            case AbortRequests():
                self.abort(message.request_ids)
            case Call():
                try:
                    return CallResult(message.call_id, self.call(message.method, message.args))
                except Exception as error:  # the caller of the method gets it
                    return CallResult(message.call_id, error=f"{type(error).__name__}: {error}")
        if self.has_work():
            return None
        return self.report([])  # no step will say which blocks are free

    def add(self, message: AddRequest) -> None:
        """Queue a request; the next step refuses one that can never run.

        A request whose id is in use is dropped: an answer would end the other one.
        """
        name = message.request_id
        if name in self.scheduler.requests or name in self._compiling:
            logger.warning("dropped a request: its id, %r, is in use", message.request_id)
            return
        try:
            request = Request(
                message.request_id,
                message.prompt_token_ids,
                message.sampling_params,
                arrival_time=message.arrival_time,
                # A pooling request generates no token, so its prompt may fill the context.
                max_model_len=self.config.scheduler.max_model_len + bool(self.config.pooling),
                inputs=self._shared(message.inputs),
            )
            self._handoff.begin(request, self.scheduler.kv.hasher)
            if not request.num_prompt_tokens:
                raise InvalidRequestError("the prompt is empty.")
            embeds, row = message.inputs.prompt_embeds, 4 * self.config.model.hidden_size
            if embeds is not None and len(embeds) != row * request.num_prompt_tokens:
                raise InvalidRequestError("prompt_embeds needs one row per prompt token.")
        except ValueError as error:  # incomplete or missing tokens
            self._reject(message.request_id, reason_of(error))
            return
        params, ends = request.sampling_params, request.inputs.eos_token_ids
        waits_for = self.executor.prepare(Prepare(params, ends, request.options.lora_request))
        if waits_for is not None:
            self._compiling.add(request, waits_for)
        else:
            self._enqueue(request)

    def _shared(self, inputs: RequestInputs) -> RequestInputs:
        """Return them with the last request's embeddings and images if equal: n completions share
        these. Their options may differ."""
        alike = replace(self._last_inputs, options=inputs.options)
        self._last_inputs = alike if alike == inputs else inputs
        return self._last_inputs

    def _enqueue(self, request: Request) -> None:
        try:
            self.scheduler.add(request)
        except InvalidRequestError as error:
            self._reject(request.request_id, reason_of(error))

    def _reject(self, request_id: str, why: str) -> None:
        self._rejected.append(CoreOutput(request_id, [], FinishReason.ERROR, stop_reason=why))

    def abort(self, request_ids: list[str]) -> None:
        self._compiling.abort(request_ids)
        self.scheduler.abort(request_ids)
        self._handoff.abort(request_ids)
        self._free_adapters()

    def has_work(self) -> bool:
        waiting = self._rejected or self._in_flight or self._compiling or self._handoff
        changed = self.scheduler.kv.pool.has_changes  # by a call
        return self.scheduler.has_unfinished() or changed or bool(waiting)

    @property
    def is_computing(self) -> bool:
        return bool(self._in_flight)

    def step(self) -> StepOutputs | None:
        """Compute one step; return None if there is no work.

        With async scheduling, the next step begins before this one has landed.
        """
        if not self.has_work():
            return None
        self.watch.lap("receive")
        if self._compiling:
            self._take_compiled()
        # Without requests, removals wait for the next batch.
        most = partial(self.executor.most_in_flight, self.config.steps_in_flight)
        while len(self._in_flight) < most() and self.scheduler.has_ready():
            self._begin()
        if not self._in_flight or self._in_flight[0].batch.empty:
            self._handoff.wait()
        outputs = self._end() if self._in_flight else StepOutputs([], None, self._clock())
        outputs.outputs = self._handoff.hold(outputs.outputs)
        outputs.stats = self._stats()
        outputs.blocks = self._take_changes()
        outputs.returned = self._handoff.settle(self.scheduler.requests, self._compiling)
        rejected, self._rejected = self._rejected, []
        outputs.outputs[:0] = rejected
        self._free_adapters()
        outputs.times = CoreTimes(**self.watch.seconds)
        return outputs

    def report(self, outputs: list[CoreOutput]) -> StepOutputs:
        """Return `outputs` with the scheduler's state, without computing a step."""
        times = CoreTimes(**self.watch.seconds)
        now, changes = self._clock(), self._take_changes()
        returned = self._handoff.settle(self.scheduler.requests, self._compiling)
        return StepOutputs(outputs, self._stats(), now, times, blocks=changes, returned=returned)

    def _take_changes(self) -> BlockChanges | None:
        """Publish the changes of the prefix cache; return them if the router wants them."""
        changes = self.scheduler.kv.pool.take_changes()
        if self._events is not None:
            self._events.put(changes, self.scheduler.kv.take_runs())
        return changes if self.config.report_cache else None

    def _stats(self) -> SchedulerStats:
        stats = self.scheduler.stats()
        stats.num_waiting += len(self._compiling)
        stats.stages = [*self.executor.stages]
        return stats

    def _take_compiled(self) -> None:
        """Queue requests whose grammars are compiled; wait for one if there is no other work."""
        idle = not (self.scheduler.has_unfinished() or self._in_flight or self._rejected)
        compiled, refused = self._compiling.take(idle=idle)
        if idle:
            self.watch.lap("idle")
        for request in compiled:
            self._enqueue(request)
        for request, why in refused:
            self._reject(request.request_id, why)

    def _begin(self) -> None:
        batch = self.scheduler.schedule(self._clock(), self.config.num_scheduler_steps)
        self.watch.lap("schedule")
        if self.config.steps_in_flight > 1:
            ahead = self._in_flight[-1].submitted if self._in_flight else None
            step = self.executor.submit(batch, ahead)
            self._in_flight.append(_InFlight(batch, step.result, step))
        else:
            self._in_flight.append(_InFlight(batch, partial(self.executor.execute, batch)))

    def _end(self) -> StepOutputs:
        """Wait for the oldest step in flight and process its result."""
        batch = self._in_flight[0].batch
        try:
            result = self._in_flight[0].wait()
        except EngineDeadError:
            raise
        except Exception as error:
            gone = self._skip_behind()
            outputs = self._recover(batch, error, gone)
        else:
            self._in_flight.popleft()
            self._note(result)
            outputs = self.scheduler.update(batch, result, self._clock())
        self.watch.lap("update")
        return outputs

    def _skip_behind(self) -> set[str]:
        """Drop all steps in flight after the oldest one failed; wait until the executor is free.

        The executor skips the steps behind a failed one, but a pipeline's first stages may have
        computed them.

        Returns:
            The sequences that these steps remove.
        """
        _, *behind = self._in_flight
        self._in_flight.clear()
        for step in behind:
            with contextlib.suppress(Exception):
                step.wait()
        return {name for step in behind for name in step.batch.removed}

    def _recover(self, batch: SchedulerOutput, error: Exception, gone: set[str]) -> StepOutputs:
        """End only the requests that make a step fail; all of them if these cannot be found."""
        if isinstance(error, ForwardError):
            logger.error("step %d failed; computing it in parts", batch.step, exc_info=error)
            try:
                result, lost = compute_apart(self._compute, batch, error, gone)
            except EngineDeadError:
                raise
            except Exception as failure:
                error = failure
            else:
                self._note(result)
                return self.scheduler.repair(batch, result, lost, self._clock())
        logger.error("step %d failed", batch.step, exc_info=error)
        self.watch.lap("model")
        return self.scheduler.fail(batch, error_text(error), self._clock())

    def _compute(self, batch: SchedulerOutput) -> ModelOutput:
        """Compute a step; no other is in flight."""
        if self.config.steps_in_flight > 1:
            return self.executor.submit(batch).result()
        return self.executor.execute(batch)

    def _note(self, result: ModelOutput) -> None:
        """Add a step's times; the rest of the core's waiting time counts as the model's."""
        times, encode = result.times, result.encode_seconds
        model = self.watch.split() - times.prepare - times.sample - encode
        self.watch.add("prepare", times.prepare)
        self.watch.add("model", max(times.model, model))
        self.watch.add("encode", encode)
        self.watch.add("sample", times.sample)

    def call(self, method: str, args: list[Any]) -> Any:
        """Run a utility method of the core or of the executor by name, for `Call` frames."""
        utilities: dict[str, Callable[..., Any]] = {
            "reset_prefix_cache": self.scheduler.reset_prefix_cache,
            "check_integrity": self.scheduler.check_integrity,
            "kv_snapshot": partial(kv_snapshot, self.scheduler.kv),
            "remove_lora": self._remove_lora,
        }
        if method not in utilities:
            return self.executor.call(method, args)
        return utilities[method](*args)

    def _remove_lora(self, lora_int_id: int) -> None:
        """Free an adapter once its last request has ended."""
        self._retired.add(lora_int_id)
        self._free_adapters()

    def _free_adapters(self) -> None:
        if not self._retired:
            return
        requests = [*self.scheduler.requests.values(), *self._compiling.requests()]
        free = self._retired - {request.lora_int_id for request in requests}
        self._retired -= free
        for lora_int_id in free:
            self.executor.call("remove_lora", [lora_int_id])

    def shutdown(self, *, is_final: bool = False) -> None:
        if self.scheduler.kv.has_saves and not self.scheduler.requests and not self._in_flight:
            with contextlib.suppress(Exception):
                self.step()  # the last blocks go to their files
        if self._events is not None:
            self._events.close()
        if is_final:
            self.executor.retire()
        self.executor.shutdown()
