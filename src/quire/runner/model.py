"""The model for the runner: replayed from plans, or called op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quire.core.config import LOGITS_ROWS, SchedulerConfig
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.op_times import OpMeter, TimedOps
from quire.ops.plan import record
from quire.runner.inputs import StepInputs

if TYPE_CHECKING:
    from quire.models.decoder import Decoder


class Model(Protocol):
    """A model; the results of both methods are valid until their next call.

    Attributes:
        decoder: the decoder that it computes.
        description: text for the log.
        python_ops: ops of a plan that have no kernel, so that Python computes them.
        arena_bytes: memory for results.
        meters: meters of its ops, in the order in which they run.
    """

    decoder: Decoder
    description: str
    python_ops: Sequence[str]
    arena_bytes: int
    meters: list[OpMeter]

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        """Compute a step and store its keys and values; return the hidden states of `rows`,
        [S, hidden]."""

    def logits(self, hidden: Array) -> Array:
        """Return float32 logits [S, vocab], or [S, labels] of a classifier, for [S, hidden].

        S is at most `max_num_seqs` or LOGITS_ROWS. A model without a head has no logits.
        """


class EagerModel:
    """Calls ops one by one, as `Decoder` does."""

    description = "eager"
    python_ops: Sequence[str] = ()
    arena_bytes = 0

    def __init__(self, decoder: Decoder, ops: Ops, kv_caches: list[KVCache]) -> None:
        self.decoder = decoder
        self._ops = TimedOps(ops, decoder.modules(kv_caches))
        self._kv_caches = kv_caches
        self.meters: list[OpMeter] = [self._ops]

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        ids, positions, meta = inputs.input_ids, inputs.positions, inputs.metadata
        adapters = inputs.adapters_of(rows)
        return self.decoder.forward(
            self._ops.table, ids, positions, self._kv_caches, meta, rows, *adapters
        )

    def logits(self, hidden: Array) -> Array:
        return self.decoder.compute_logits(self._ops.table, hidden)


class PlannedModel:
    """Plans of the step, and of the logits if the model has a head, recorded from the decoder.

    Results have the bits of `EagerModel`. With `adapters` the step includes LoRA ops.

    Raises:
        ConfigError: the decoder does something that cannot be recorded.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        kv_caches: list[KVCache],
        block_size: int,
        limits: SchedulerConfig,
        *,
        adapters: bool = False,
    ) -> None:
        self.decoder = decoder
        ids, positions, meta = _one_token(ops, block_size)
        rows = ops.array(np.zeros(1, np.int64))
        none = [ops.array(np.full(1, -1)) for _ in range(2)]
        adapter = none if adapters else []
        modules = decoder.modules(kv_caches)
        self._forward = record(
            ops,
            lambda table, ids, positions, meta, *rows: decoder.forward(
                table, ids, positions, kv_caches, meta, *rows
            ),
            (ids, positions, meta, rows, *adapter),
            limits.max_num_batched_tokens,
            modules,
        )
        plans = [self._forward]
        if decoder.config.lm_head or decoder.config.num_labels:
            hidden = self._forward.result((ids, positions, meta, rows, *adapter))
            self._logits = record(
                ops,
                decoder.compute_logits,
                (hidden,),
                max(limits.max_num_seqs, LOGITS_ROWS),
                modules,
            )
            plans.append(self._logits)
        plans[-1].precede(plans[0])
        self.meters: list[OpMeter] = [plan.meter for plan in plans]
        self.arena_bytes = sum(plan.arena_bytes for plan in plans)
        self.python_ops: Sequence[str] = sorted({op for plan in plans for op in plan.python_ops})
        slow = f" ({', '.join(self.python_ops)} in Python: no kernel)" if self.python_ops else ""
        self.description = (
            f"plan: {sum(plan.num_ops for plan in plans)} ops, "
            f"{sum(plan.num_segments for plan in plans)} segments{slow}, "
            f"arena {self.arena_bytes / 2**20:.1f} MiB"
        )

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        given = (inputs.input_ids, inputs.positions, inputs.metadata, rows)
        return self._forward.run((*given, *inputs.adapters_of(rows)))

    def logits(self, hidden: Array) -> Array:
        return self._logits.run((hidden,))


def _one_token(ops: Ops, block_size: int) -> tuple[Array, Array, AttentionMetadata]:
    """Return ids, positions and metadata of a sequence of one token, in block 0."""
    ids, positions, slots = (ops.array(np.zeros(1, np.int64)) for _ in range(3))
    meta = AttentionMetadata(
        query_start_loc=np.array([0, 1], np.int32),
        seq_lens=np.ones(1, np.int32),
        block_tables=ops.array(np.zeros((1, 1), np.int32)),
        slot_mapping=slots,
        num_seqs=1,
        block_size=block_size,
    )
    return ids, positions, meta
