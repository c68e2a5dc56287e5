"""The executor of several processes that share each layer among them (tensor parallelism)."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from msgspec.structs import replace

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError
from quire.core.lora import LoRARequest
from quire.core.sampling_params import SamplingParams
from quire.executor.base import Executor, ForwardError, Prepare
from quire.executor.frames import Call, Outcome, Step, column, pooled_sum
from quire.executor.team import Team, lost
from quire.executor.uniproc import UniprocExecutor
from quire.models.weights.shares import shared_config
from quire.parallel.shared_memory import anonymous_file

_SUMMED = (
    "num_threads",
    "weight_bytes",
    "kv_cache_bytes",
    "kv_bytes_per_token",
    "host_kv_bytes",
    "disk_kv_bytes",
    "activation_bytes",
    "runtime_bytes",
)
"""Facts that add up over the ranks."""


def make_executor(config: EngineConfig, on_lost: Callable[[int], None] | None = None) -> Executor:
    """Return the executor for `config`.

    Args:
        on_lost: called with the exit status of an executor's process that ended unexpectedly.
    """
    if config.tensor_parallel_size == 1:
        return UniprocExecutor(config)
    return MultiprocExecutor(config, on_lost)


class MultiprocExecutor(UniprocExecutor):
    """Rank 0 computes here, and each other rank in its own process. They share the cores.

    Every rank gets every step and holds the whole state, except other ranks' KV heads. All ranks
    have the same logits to the bit and sample the same tokens, which rank 0 compares. After a step
    that fails on all ranks, they continue. If it fails on some, or if a process ends, the executor
    raises `EngineDeadError`.
    """

    def __init__(self, config: EngineConfig, on_lost: Callable[[int], None] | None = None) -> None:
        from quire.ops.rank_memory import rank_group_bytes

        ranks = config.tensor_parallel_size
        shares = [shared_config(config, rank) for rank in range(ranks)]
        self._ranks = ranks
        self._memory = anonymous_file(rank_group_bytes(ranks))
        self._team = Team(shares, self._memory, self._lost)
        self._when_lost = on_lost
        super().__init__(shares[0], self._team)
        self._number = 0
        self._sent_version = 0

    def start(self) -> None:
        try:
            self._team.start()
            super().start()
            self._team.wait_until_loaded()
        except BaseException as error:
            failure = self._team.failure()
            self.shutdown()
            if failure is not None:  # the cause of rank 0's error
                raise failure from error
            raise

    @property
    def facts(self) -> dict[str, object]:
        facts = dict(super().facts)
        for name in _SUMMED:
            share = facts[name]
            assert isinstance(share, int)
            facts[name] = share * self._ranks
        return facts | {"tensor_parallel_size": self._ranks}

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        self._number += 1
        same = batch.batch_version == self._sent_version != 0
        sent = replace(batch, request_ids=[]) if same else batch
        self._team.send(Step(self._number, sent, same))
        self._sent_version = batch.batch_version
        try:
            output = self._worker.execute_together(self._number, batch)
        except Exception as error:
            outcomes = self._team.outcomes()
            _all_failed(error, outcomes)
            raise
        for rank, outcome in enumerate(self._team.outcomes(), 1):
            _same_tokens(rank, outcome, output)
            output.failed_loads = sorted({*output.failed_loads, *outcome.failed_loads})
        return output

    def prepare(self, wanted: Prepare) -> Future[Any] | None:
        if wanted.params.reads_output or wanted.lora_request is not None:
            self._team.send(wanted)
        return super().prepare(wanted)

    def _call(self, method: str, args: list[Any]) -> Any:
        """Run a method: adapters on all ranks, others on rank 0, which stands for all."""
        if method == "add_lora":
            return self._add_adapter(args)
        result = super()._call(method, args)
        if method == "remove_lora":
            self._call_others(method, args)
        if method == "stop_op_profile":
            for op in result["ops"]:
                op["nbytes"] *= self._ranks
                op["flops"] *= self._ranks
        return result

    def _add_adapter(self, args: list[Any]) -> Any:
        """Load an adapter on all ranks at the same time; return their common answer, or None while
        rank 0 is still loading."""
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

    def shutdown(self) -> None:
        self._worker.lose_group()
        self._team.close()
        super().shutdown()
        os.close(self._memory)

    def _lost(self, status: int) -> None:
        if self._when_lost is not None:
            self._when_lost(status)
        self._worker.lose_group()


def _all_failed(error: Exception, outcomes: list[Outcome]) -> None:
    """Raise unless a step that failed on rank 0 failed on all ranks."""
    for rank, outcome in enumerate(outcomes, 1):
        if outcome.error is None:
            raise _apart(f"a step failed on rank 0, but not on rank {rank}") from error
        if isinstance(error, ForwardError):
            error.failed_loads = sorted({*error.failed_loads, *outcome.failed_loads})


def _same_tokens(rank: int, outcome: Outcome, output: ModelOutput) -> None:
    """Raise unless a rank computed the same as rank 0."""
    if outcome.error is not None:
        raise _apart(f"a step failed on rank {rank}, but not on rank 0: {outcome.error}")
    tokens = output.sampled_token_ids
    if not np.array_equal(column(outcome.tokens), tokens.reshape(-1)):
        raise _apart(f"rank {rank} sampled other tokens than rank 0")
    if outcome.pooled != pooled_sum(output):
        raise _apart(f"rank {rank} has other hidden states than rank 0")


def _apart(what: str) -> EngineDeadError:
    return EngineDeadError(f"The ranks do not agree: {what}.", fix=lost().fix)
