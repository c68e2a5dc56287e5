"""The model for the runner: replayed from plans, or called op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from quire.core.config import LOGITS_ROWS, SchedulerConfig
from quire.layers.layer import Cache
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata
from quire.ops.op_times import OpMeter, TimedOps
from quire.ops.plans.plan import NativePlan, Plan
from quire.ops.plans.recorder import record
from quire.runner.inputs import StepInputs
from quire.runner.recording import one_given_row, one_stage_row, one_token

if TYPE_CHECKING:
    from quire.models.decoder import Decoder


class Model(Protocol):
    """A model; the results of both methods are valid until their next call.

    Attributes:
        description: text for the log.
        arena_bytes: memory for results.
        meters: meters of its ops, in the order in which they run.
        tapped: of the last `forward`, the rows of the residual stream that entered each of `taps`.
        capture_sizes: rows of the decode steps that it wants filled with void rows.
    """

    description: str
    arena_bytes: int
    capture_sizes: Sequence[int]

    @property
    def decoder(self) -> Decoder: ...

    @property
    def meters(self) -> list[OpMeter]: ...

    @property
    def tapped(self) -> Sequence[Array]: ...

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        """Compute a step and store its keys and values; return the hidden states of `rows`,
        [S, hidden]."""

    def logits(self, hidden: Array) -> Array:
        """Return float32 logits [S, vocab], or [S, labels] of a classifier, for [S, hidden].

        S is at most `max_num_seqs` or LOGITS_ROWS. A model without a head has no logits.
        """


class Tap:
    """Collects `rows` of the residual stream that enters each of `layers`, in their order."""

    def __init__(self, ops: Ops, rows: Array, layers: Sequence[int]) -> None:
        self._ops = ops
        self._rows = rows
        self._layers = layers
        self._found: dict[int, Array] = {}

    def __call__(self, layer: int, stream: Array) -> None:
        if layer in self._layers:
            self._found[layer] = self._ops.embedding(self._rows, stream)

    @property
    def found(self) -> list[Array]:
        return [self._found[layer] for layer in self._layers]


class EagerModel:
    """Calls ops one by one, as `Decoder` does.

    Args:
        taps: layers whose input a draft head reads.
    """

    description = "eager"
    arena_bytes = 0
    capture_sizes: Sequence[int] = ()

    def __init__(
        self, decoder: Decoder, ops: Ops, caches: Sequence[Cache], taps: Sequence[int] = ()
    ) -> None:
        self.decoder = decoder
        self.tapped: Sequence[Array] = ()
        self._taps = taps
        self._ops = TimedOps(ops, decoder.modules(caches))
        self._caches = caches
        self.meters: list[OpMeter] = [self._ops]

    @property
    def timed(self) -> bool:
        """Return whether its ops are timed now."""
        return self._ops.active

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        ids, positions, meta = inputs.input_ids, inputs.positions, inputs.metadata
        adapters, tap = inputs.adapters_of(rows), Tap(self._ops.table, rows, self._taps)
        hidden = self.decoder.forward(
            self._ops.table, ids, positions, self._caches, meta, rows, *adapters,
            embeds=inputs.embeds, rotations=inputs.rotations, deep=inputs.deep, own=inputs.own,
            tap=tap,
        )  # fmt: skip
        self.tapped = tap.found
        return hidden

    def logits(self, hidden: Array) -> Array:
        return self.decoder.compute_logits(self._ops.table, hidden)


class PlannedModel:
    """Plans of the step, and of the logits if the model has a head, recorded from the decoder.

    Results have the bits of `EagerModel`. With `adapters` the step includes LoRA ops, and with
    `taps` it also returns what enters these layers. With `given_rows` there is a plan of steps that
    bring the first layer's rows along, too.

    Raises:
        ConfigError: the decoder does something that cannot be recorded.
    """

    capture_sizes: Sequence[int] = ()

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        caches: Sequence[Cache],
        block_size: int,
        limits: SchedulerConfig,
        *,
        adapters: bool = False,
        taps: Sequence[int] = (),
        given_rows: bool = False,
    ) -> None:
        self.decoder = decoder
        self.tapped: Sequence[Array] = ()
        ids, positions, meta = one_token(
            ops, block_size, states=decoder.config.recurrent is not None
        )
        own = []
        if not decoder.config.in_first_stage:
            ids, *own = one_stage_row(ops, decoder)
        rows = ops.array(np.zeros(1, np.int64))
        none = [ops.array(np.full(1, -1)) for _ in range(2)]
        adapter = none if adapters else []
        inputs = (ids, positions, meta, rows, *own)
        self._forward = self._record(ops, caches, (*inputs, *adapter), limits, taps)
        plans = [self._forward]
        config = decoder.config
        self._given: Plan | None = None
        if given_rows:
            row, vision = one_given_row(ops, decoder), decoder.config.vision
            if vision is not None and vision.whole:
                meta = one_token(ops, block_size, whole=True)[2]
            self._given = self._record(
                ops, caches, (ids, positions, meta, rows, *own, *row, *adapter), limits, taps,
                given=len(row),
            )  # fmt: skip
        if config.in_last_stage and (config.lm_head or config.num_labels):
            hidden = self._forward.result((*inputs, *adapter))
            self._logits = record(
                ops,
                decoder.compute_logits,
                (hidden,),
                max(limits.max_num_seqs, LOGITS_ROWS),
                decoder.modules(caches),
            )
            plans.append(self._logits)
        plans[-1].precede(plans[0])
        plans += [self._given] if self._given is not None else []
        self.meters: list[OpMeter] = [plan.meter for plan in plans]
        self.arena_bytes = sum(plan.arena_bytes for plan in plans)
        num_ops = sum(plan.num_ops for plan in plans)
        self.description = f"plan: {num_ops} ops, arena {self.arena_bytes / 2**20:.1f} MiB"

    def _record(
        self,
        ops: Ops,
        caches: Sequence[Cache],
        inputs: Sequence[Any],
        limits: SchedulerConfig,
        taps: Sequence[int],
        given: int = 0,
    ) -> Plan:
        """Record the step; `given` of its inputs, behind the rows, are those of `one_given_row`."""
        decoder = self.decoder
        brought = bool(decoder.config.own_columns and not decoder.config.in_first_stage)

        def forward(
            table: Ops, ids: Array, positions: Array, meta: AttentionMetadata, rows: Array,
            *rest: Array,
        ) -> tuple[Array, ...]:  # fmt: skip
            tap = Tap(table, rows, taps)
            own, rest = rest[:brought], rest[brought:]
            embeds, rotations = (*rest[:given], None, None)[:2]
            hidden = decoder.forward(
                table, ids, positions, caches, meta, rows, *rest[given:],
                embeds=embeds, rotations=rotations, deep=rest[2:given], own=(*own, None)[0],
                tap=tap,
            )  # fmt: skip
            return (hidden, *tap.found)

        return record(ops, forward, inputs, limits.max_num_batched_tokens, decoder.modules(caches))

    @property
    def native_plans(self) -> tuple[NativePlan, NativePlan]:
        """Return the plans of the step and of the logits for native code."""
        return self._forward.native, self._logits.native

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        given: tuple[Any, ...] = (inputs.input_ids, inputs.positions, inputs.metadata, rows)
        given += () if inputs.own is None else (inputs.own,)
        plan = self._forward
        if inputs.embeds is not None:
            assert self._given is not None, "the plan of given rows was not recorded"
            plan = self._given
            rotations = () if inputs.rotations is None else (inputs.rotations,)
            given = (*given, inputs.embeds, *rotations, *inputs.deep)
        hidden = plan.run((*given, *inputs.adapters_of(rows)))
        self.tapped = plan.outputs[1:]
        return hidden

    def logits(self, hidden: Array) -> Array:
        return self._logits.run((hidden,))
