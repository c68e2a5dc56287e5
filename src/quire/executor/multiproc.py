"""The executor of several processes: they share each layer among them, or the layers, or both."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
from msgspec.structs import replace

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError
from quire.core.lora import LoRARequest
from quire.core.messages import StageStats
from quire.core.op_profile import OpProfile
from quire.core.sampling_params import SamplingParams
from quire.executor.base import ForwardError, Pending, Prepare, RemoteError, StepSkippedError
from quire.executor.cluster import Cluster
from quire.executor.facts import summed_facts
from quire.executor.frames import Call, Landed, Outcome, Step
from quire.executor.peers import shared_bytes
from quire.executor.team import Team, lost
from quire.executor.uniproc import UniprocExecutor
from quire.models.weights.shares import worker_configs, worker_grid
from quire.parallel.shared_memory import anonymous_file


class MultiprocExecutor(UniprocExecutor):
    """Worker 0 computes here, and each other one in its own process. They share the cores.

    Every worker gets every step and holds the whole state, except other workers' layers and heads.
    All ranks of the last stage have the same logits to the bit and sample the same tokens, which
    are compared; the other stages learn them with a later step. After a step that fails on all
    ranks of a stage, all workers continue. If it fails on some, or if a process ends, the executor
    raises `EngineDeadError`.
    """

    def __init__(self, config: EngineConfig, on_lost: Callable[[int], None] | None = None) -> None:
        shares = worker_configs(config)
        self._grid = worker_grid(config)
        self._memory = anonymous_file(shared_bytes(config))
        cluster = Cluster(config) if config.cluster.nnodes > 1 else None
        self._team = Team(shares, self._memory, self._lost, cluster)
        self._when_lost = on_lost
        super().__init__(shares[0], self._team)
        self._number = 0
        self._sent_version = 0
        self._landed: list[Landed] = []
        self._again = False
        count = self._grid.stages if self._grid.stages > 1 else 0
        self.stages = [StageStats() for _ in range(count)]

    def start(self) -> None:
        try:
            self._team.start()
            super().start()
            self.facts = self._summed(self._team.wait_until_loaded())
        except BaseException as error:
            failure = self._team.failure()
            if failure is None and isinstance(error, EOFError | ConnectionError):
                failure = lost()  # a link between stages has ended
            self.shutdown()
            if failure is not None:  # the cause of worker 0's error
                raise failure from error
            raise

    def _summed(self, others: list[dict[str, int]]) -> dict[str, object]:
        """Return the facts of worker 0, with sizes that are those of all workers."""
        own = summed_facts(self.facts)
        sizes = {name: own[name] + sum(other[name] for other in others) for name in own}
        grid = {
            "tensor_parallel_size": self._grid.ranks,
            "pipeline_parallel_size": self._grid.stages,
        }
        return self.facts | sizes | grid

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self.submit(batch).result()

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        """Send a step to all workers; they skip it if the step `ahead` fails."""
        self._number += 1
        same = batch.batch_version == self._sent_version != 0
        step = Step(self._number, batch, landed=self._landed, again=self._again)
        self._landed, self._again, self._sent_version = [], False, batch.batch_version
        sent = replace(step, batch=replace(batch, request_ids=[]), same_requests=True)
        self._team.send(sent if same else step)
        if self._overlaps:
            return _Submitted(self._thread.submit(self._worker.execute_together, step), self._land)
        own: Future[ModelOutput] = Future()
        try:
            own.set_result(self._worker.execute_together(step))
        except Exception as error:
            own.set_exception(error)
        return _Submitted(own, self._land)

    def _land(self, own: Future[ModelOutput]) -> ModelOutput:
        """Return the result of the oldest step in flight, or raise its error."""
        error: Exception | None = None
        output: ModelOutput | None = None
        try:
            output = own.result()
            first = Outcome.of(output)
        except Exception as failure:
            error, first = failure, Outcome.failed(failure)
        outcomes = [first, *self._team.outcomes()]
        try:
            return self._agreed(outcomes, error, output)
        except Exception:
            self._again = True
            raise

    def _agreed(
        self, outcomes: list[Outcome], error: Exception | None, output: ModelOutput | None
    ) -> ModelOutput:
        """Return the step's result from the outcomes of all workers; `error` and `output` are
        worker 0's."""
        groups = self._grid.tensor_groups
        for group in groups:
            check_agreement([outcomes[worker] for worker in group])
        leaders = [outcomes[group[0]] for group in groups]
        loads = (
            sorted({load for outcome in outcomes for load in outcome.failed_loads}),
            sorted({load for outcome in outcomes for load in outcome.pending_loads}),
        )
        for number, leader in enumerate(leaders):
            if leader.skipped:
                raise StepSkippedError
            if leader.error is not None:
                raise _step_error(leader, error if number == 0 else None, *loads)
        assert output is not None
        first, output = output, leaders[-1].output or output
        output.encoded_tokens = first.encoded_tokens  # the first stage reads images
        output.encoded_images = first.encoded_images
        output.encode_seconds, output.read_ahead = first.encode_seconds, first.read_ahead
        output.failed_loads, output.pending_loads = loads
        output.times = max((leader.times for leader in leaders), key=sum)
        for stage, leader in zip(self.stages, leaders, strict=False):
            stage.busy += sum(leader.times)
            stage.hop_seconds += leader.hops.seconds
            stage.hop_bytes += leader.hops.nbytes
            stage.hops += leader.hops.steps
        if self._grid.stages > 1 and output.sampled_token_ids.size:
            self._landed.append(Landed(output.sampled_token_ids, output.drafts))
        return output

    def prepare(self, wanted: Prepare) -> Future[Any] | None:
        if wanted.params.reads_output or wanted.lora_request is not None:
            self._team.send(wanted)
        return super().prepare(wanted)

    def _call(self, method: str, args: list[Any]) -> Any:
        """Run a method: adapters on all workers, profiles of ops on all stages, others on worker 0,
        which stands for all."""
        if method == "add_lora":
            return self._add_adapter(args)
        if method in ("start_profile", "stop_profile", "profile_status"):
            return self._trace(method, args)
        result = super()._call(method, args)
        if method in ("start_stacks", "stop_stacks"):
            others = self._call_others(method, args)
            return result and [*result, *(stacks for other in others for stacks in other)]
        if method == "remove_lora":
            self._call_others(method, args)
        if self._grid.stages > 1 and method in ("start_op_profile", "stop_op_profile"):
            others = self._call_others(method, args)
            if method == "stop_op_profile":
                leaders = [[result, *others][group[0]] for group in self._grid.tensor_groups]
                profiles = [msgspec.convert(leader, OpProfile) for leader in leaders]
                result = msgspec.to_builtins(OpProfile.of_stages(profiles))
        if method == "stop_op_profile":
            for op in result["ops"]:
                op["nbytes"] *= self._grid.ranks
                op["flops"] *= self._grid.ranks
        return result

    def _trace(self, method: str, args: list[Any]) -> Any:
        """Record traces on all workers, each in its own file; return worker 0's answer, with the
        files of all."""
        result, others = super()._call(method, args), self._call_others(method, args)
        if method == "start_profile":
            return result
        for worker, other in enumerate(others, 1):
            node = self._grid.node(worker)
            for name in ("active", "writing"):
                result[name] |= other[name]
            for name in ("files", "failures"):
                result[name] += [f"node {node}: {each}" if node else each for each in other[name]]
        return result

    def _add_adapter(self, args: list[Any]) -> Any:
        """Load an adapter on all workers at the same time; return their common answer, or None
        while worker 0 is still loading."""
        self._team.send(Prepare(SamplingParams(), lora_request=LoRARequest(*args)))
        result = super()._call("add_lora", args)
        if result is None:
            return None
        answers = [result, *self._call_others("load_lora", args)]
        found = next((answer for answer in answers if "error" in answer), None)
        if found is None and any(answer != result for answer in answers):
            found = {"error": "The files changed while they were read."}
        if found is not None:
            super()._call("remove_lora", args[1:2])
            self._call_others("remove_lora", args[1:2])
        return result if found is None else found

    def _call_others(self, method: str, args: list[Any]) -> list[Any]:
        self._team.send(Call(method, args))
        return self._team.answers()

    def retire(self) -> None:
        self._team.retire()

    def shutdown(self) -> None:
        self._worker.place.lose()
        self._team.close()
        super().shutdown()
        os.close(self._memory)

    def _lost(self, status: int) -> None:
        if self._when_lost is not None:
            self._when_lost(status)
        self._worker.place.lose()


class _Submitted:
    """A step on its way through the workers; steps must be awaited in their order."""

    def __init__(
        self, own: Future[ModelOutput], land: Callable[[Future[ModelOutput]], ModelOutput]
    ) -> None:
        self._own = own
        self._land = land

    def result(self) -> ModelOutput:
        return self._land(self._own)


def check_agreement(outcomes: list[Outcome]) -> None:
    """Raise `EngineDeadError` unless all ranks of a stage have computed the same, or failed."""
    first = outcomes[0]
    for rank, outcome in enumerate(outcomes[1:], 1):
        if (outcome.error is None) != (first.error is None) or outcome.skipped != first.skipped:
            failed, other = (0, rank) if outcome.error is None else (rank, 0)
            why = first.error or outcome.error
            raise _apart(f"a step failed on rank {failed}, but not on rank {other}: {why}")
        if outcome.tokens != first.tokens:
            raise _apart(f"rank {rank} sampled other tokens than rank 0")
        if outcome.pooled != first.pooled:
            raise _apart(f"rank {rank} has other hidden states than rank 0")


def _step_error(
    outcome: Outcome, own: Exception | None, failed_loads: list[int], pending_loads: list[int]
) -> Exception:
    """Return the error of a step that failed in a stage; `own` is worker 0's exception."""
    if isinstance(own, ForwardError):
        own.failed_loads, own.pending_loads = failed_loads, pending_loads
    if own is not None:
        return own
    cause = RemoteError(outcome.error)
    if not outcome.in_forward:
        return cause
    error = ForwardError(failed_loads, 0.0, pending_loads)
    error.__cause__ = cause
    return error


def _apart(what: str) -> EngineDeadError:
    return EngineDeadError(f"The workers do not agree: {what}.", fix=lost().fix)
