"""A worker: the model, its KV cache and the runner."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import EngineConfig, StateConfig
from quire.core.errors import InvalidRequestError, QuireError
from quire.core.lora import LoRARequest
from quire.executor.base import ForwardError, Prepare, StepSkippedError
from quire.executor.facts import worker_facts
from quire.executor.frames import Step
from quire.executor.load_bar import load_bar
from quire.executor.peers import Peers, Place
from quire.executor.resident import ResidentParts
from quire.executor.tiers import Tiers, open_tiers
from quire.kv.lower_tiers import LowerTier
from quire.models.adapters import lora_tables
from quire.models.parameters import Progress
from quire.models.weights.offload import WeightOffload
from quire.models.weights.pack_cache import PackCache, open_cache
from quire.system.hardware import detect
from quire.system.stopwatch import Stopwatch

if TYPE_CHECKING:
    from quire.lora.pool import AdapterPool
    from quire.profile.profiling import Profiling
    from quire.runner.runner import ModelRunner
    from quire.sampling.grammars import Grammars

logger = logging.getLogger(__name__)


class Worker:
    """Loads a model, or a share of it, and computes steps.

    Args:
        peers: the other workers, if it has a share.

    Attributes:
        phases: seconds of each part of `start`, in order; they add up to its wall time.
        facts: plain values for logs and reports.
        num_blocks: blocks in the KV cache.
        states: slots of recurrent layers, if the model has some.
        lower_tiers: those below host memory.
        place: the other workers of its step.
    """

    def __init__(self, config: EngineConfig, peers: Peers | None = None) -> None:
        self.config = config
        self._peers = peers
        self.place = Place(config, None)
        self._skips = False
        """A step has failed; skip those behind it."""
        self.phases: dict[str, float] = {}
        self.facts: dict[str, object] = {}
        self.num_blocks = 0
        self.states: StateConfig | None = None
        self.lower_tiers: Sequence[LowerTier] = ()
        self._runner: ModelRunner | None = None
        self._tiers = Tiers()
        self._cache: PackCache | None = None
        self._offload: WeightOffload | None = None
        self._begun = False
        self._profiling: Profiling | None = None
        self._grammars: Grammars | None = None
        self._adapters: AdapterPool | None = None

    def begin(self) -> None:
        """Begin to read packed weights, if the cache has them; `start` does the rest.

        Whoever begins early waits for a first token. So on a CPU `start` computes no step: it would
        read all weights, and the first request does the same set-up.
        """
        config = self.config
        in_files = config.cpu_offload_bytes and config.device == "cpu"
        self._offload = WeightOffload(config) if in_files else None
        self._cache = open_cache(config, self._offload)
        self._begun = True

    def start(self) -> None:
        """Fit the KV cache, load the weights, allocate the cache, and run one small step (but see
        `begin`).

        Raises:
            OutOfMemoryError: not even one sequence fits; raised before any weight is read.
            CheckpointError, ModelNotFoundError: a model file is faulty or missing.
            ConfigError: the requested kernels do not exist here.
        """
        watch = Stopwatch()
        self.phases = watch.seconds
        begun, share = self._begun, self.config.share
        if not begun:
            self.begin()  # read while the other modules are imported
        with load_bar(shown=share is None or share.worker == 0) as progress:
            # Workers of one step compute the first together, and only worker 0 begins early.
            self._start(progress, watch, warm_up=not begun or share is not None)

    def _start(self, progress: Progress | None, watch: Stopwatch, *, warm_up: bool) -> None:
        config = self.config
        cache, offload = self._cache, self._offload
        from quire.executor import parts
        from quire.models.memory import loaded_bytes
        from quire.models.weights.loader import load_model
        from quire.ops.device import Accelerator
        from quire.ops.providers import engine_ops, open_device, stored_linears
        from quire.profile.profiling import Profiling

        rank = config.share.rank if config.share else 0
        device = open_device(config.device, config.first_gpu + rank)
        self.place = Place(config, self._peers)
        group = self.place.group
        ops = engine_ops(config, device, group)
        ops.use_threads(config.num_threads)
        watch.lap("import_ops")
        resident = ResidentParts()
        resident.lap("program", besides=parts.read_ahead_bytes(cache))
        weights = loaded_bytes(config)
        there = device if isinstance(device, Accelerator) else None
        plan = parts.fit_memory(config, there, cache, self._peers)
        tables = lora_tables(config, ops)
        self._adapters = parts.open_adapters(config, tables)
        moved: WeightOffload | HostOffload | None = offload
        if config.cpu_offload_bytes and there:
            from quire.models.weights.host_offload import HostOffload

            moved = HostOffload(config, there)
            ops = moved.ops(there)
        place = moved.place if moved else None
        decoder = load_model(config, ops, cache, progress, place, tables)
        if offload:
            free = detect().available_bytes - plan.cache_bytes - plan.activations
            offload.start(decoder.linear_weights, free)
        resident.lap("weights")
        watch.lap("load_weights")
        self._grammars = parts.open_grammars(config)
        self._runner = parts.new_runner(
            config, plan, decoder, ops, self._grammars, self._adapters, self.place.stage
        )
        self._tiers = open_tiers(config, self._runner, ops)
        self.num_blocks, self.states = plan.num_blocks, plan.states
        self.lower_tiers = self._tiers.lower
        self.facts = worker_facts(config, ops, plan, weights, self._runner.model)
        self.facts["offloaded_weight_bytes"] = moved.moved_bytes if moved else 0
        logger.info("model: %s, on %s", self._runner.model.description, ops.note or ops.provider)
        self._profiling = Profiling(config.profiler, *self._runner.meters, group)
        resident.lap("plans")
        watch.lap("allocate_kv")
        if there or (warm_up and config.shared_kv is None):  # a predecessor may have lent block 0
            self._warm_up(self._runner, parts.warm_up_steps(config.scheduler, plan.states))
            resident.lap("first step")  # the first pages of the KV cache, and scratch memory
            watch.lap("warm_up")
        self.facts["resident_bytes"] = dict(resident.parts)
        logger.info("memory: %s", resident)
        if cache and not cache.linears():
            cache.save(stored_linears(decoder.linear_weights))

    def _warm_up(self, runner: ModelRunner, steps: Iterable[SchedulerOutput]) -> None:
        """Compute steps so that no request waits for set-up; nobody sends their tokens."""
        for step in steps:
            self.execute(step)
        runner.unsettled.settle(token_columns([[]]))

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        """Do a step's copies and compute it; `ModelRunner.execute` describes the state after an
        exception."""
        if self._profiling is not None and self._profiling.active:
            return self._profiling.run(batch, self._execute)
        return self._execute(batch)

    def execute_together(self, step: Step) -> ModelOutput:
        """Run `execute` as all workers do, each in its place.

        Raises:
            StepSkippedError: a step ahead of it has failed, and nobody has said to go on.
        """
        assert self._runner is not None, "the worker is not started"
        for landed in step.landed:
            self._runner.unsettled.settle(*landed)
        if step.again:
            self._runner.unsettled.forget()
            self._skips = False
        if self._skips:
            raise StepSkippedError
        self.place.begin(step.number)
        try:
            return self.execute(step.batch)
        except BaseException:
            self._skips = True
            self.place.fail()
            raise

    def prepare(self, wanted: Prepare) -> Future[Any] | None:
        """See `Executor.prepare`."""
        params, adapter_wanted = wanted.params, wanted.lora_request
        structured = params.structured_outputs
        grammar: Future[Any] | None = None
        adapter: Future[Any] | None = None
        if structured is not None:
            assert self._grammars is not None, "the worker is not started"
            grammar = self._grammars.prepare(
                structured, wanted.eos_token_ids, params.written_structure
            )
        elif params.limits_thinking:
            assert self._grammars is not None, "the worker is not started"
            grammar = self._grammars.prepare_tokenizer()
        if adapter_wanted is not None and self._adapters is not None:
            adapter = self._adapters.prefetch(adapter_wanted)
        return _both(grammar, adapter) if grammar and adapter else grammar or adapter

    def call(self, method: str, args: list[Any]) -> Any:
        """Run a method of `profile.profiling.Profiling`, or of adapters, between two steps."""
        assert self._profiling is not None, "the worker is not started"
        if method in ("add_lora", "load_lora", "remove_lora", "list_loras"):
            return self._call_adapters(method, args)
        return self._profiling.call(method, args)

    def _call_adapters(self, method: str, args: list[Any]) -> Any:
        """Run a method of `AdapterPool`; `load_lora` is an `add_lora` that waits. A faulty adapter
        returns {"error": text}."""
        if self._adapters is None:
            raise InvalidRequestError("adapters are off.", fix="Start with --enable-lora.")
        if method == "list_loras":
            return self._adapters.held()
        if method == "remove_lora":
            return self._adapters.remove(args[0])
        try:
            digest = self._adapters.add(LoRARequest(*args), wait=method == "load_lora")
        except QuireError as error:
            return {"error": str(error)}
        return None if digest is None else {"digest": digest}

    def _execute(self, batch: SchedulerOutput) -> ModelOutput:
        if self._runner is None:
            raise RuntimeError("the worker is not started")
        host, seconds, report = self._tiers.host, 0.0, None
        if host and (batch.block_copies or host.is_reading):
            begin = time.monotonic()
            report = host.copy(batch.block_copies, wait=batch.empty)
            seconds = time.monotonic() - begin
        failed, pending = (report.failed, report.pending) if report else ([], [])
        try:
            output = self._runner.execute(batch)
        except Exception as error:
            raise ForwardError(failed, seconds, pending) from error
        output.failed_loads, output.pending_loads, output.copy_seconds = failed, pending, seconds
        if report:
            output.reads, output.unsaved = report.reads, report.unsaved
        return output

    def shutdown(self) -> None:
        """Free the model and the KV cache."""
        if self._profiling is not None:
            self._profiling.shutdown()
        self._runner = None
        self.place.close()
        if self._grammars is not None:
            self._grammars.shutdown()
        if self._adapters is not None:
            self._adapters.shutdown()
        self._tiers.close()
        if self._cache is not None:
            self._cache.close()


def _both(first: Future[Any], second: Future[Any]) -> Future[None]:
    """Return a future that is done when both are; it raises the first error of the two."""
    done: Future[None] = Future()

    def settle(_: Future[Any]) -> None:
        error = first.exception() or second.exception()
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    first.add_done_callback(lambda _: second.add_done_callback(settle))
    return done
