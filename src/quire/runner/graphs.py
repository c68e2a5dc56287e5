"""Decode steps as graphs: the host queues a whole step in one call, not each of its kernels.

```
 sequences   1  2  3 │ void  → the next captured size, 4: rows that write nothing and read nothing
                     ▼
 first step of a size     called op by op, then recorded, with the same inputs
 later steps              inputs and tables are overwritten where they lie; the graph is replayed
```
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire.ops.array import Array
from quire.ops.graphs import Capture, FixedTables, Graph
from quire.ops.metadata import KVCache
from quire.ops.op_times import OpMeter
from quire.runner.inputs import StepInputs
from quire.runner.model import EagerModel, Model, PlannedModel

if TYPE_CHECKING:
    from quire.core.config import SchedulerConfig
    from quire.layers.layer import Cache
    from quire.models.decoder import Decoder
    from quire.ops.interface import Ops

logger = logging.getLogger(__name__)


def new_model(
    decoder: Decoder,
    ops: Ops,
    caches: Sequence[Cache],
    block_size: int,
    limits: SchedulerConfig,
    *,
    enforce_eager: bool,
    capture_sizes: Sequence[int],
    adapters: bool,
    taps: Sequence[int],
    given_rows: bool,
) -> Model:
    """Return the fastest model that the ops can compute; the arguments are those of the models.

    Args:
        capture_sizes: () for steps with drafts, or without tokens: a sequence has other rows there.
    """
    if ops.new_plan is not None and not enforce_eager:
        return PlannedModel(
            decoder, ops, caches, block_size, limits,
            adapters=adapters, taps=taps, given_rows=given_rows,
        )  # fmt: skip
    eager, capture = EagerModel(decoder, ops, caches, taps), ops.capture
    if enforce_eager or capture is None or not capture_sizes:
        return eager
    if not capture.reads([cache for cache in caches if isinstance(cache, KVCache)]):
        return eager
    return GraphModel(eager, capture, capture_sizes, limits.max_model_len)


class _Recorded(NamedTuple):
    """A step of one size; `hidden` and `logits` hold the results of its last replay."""

    graph: Graph
    tables: FixedTables
    hidden: Array
    logits: Array


class GraphModel:
    """A `Model` that replays decode steps from graphs, and calls the ops of others.

    Results have the bits of `EagerModel`: the kernels and what they read are the same.

    Args:
        capture: the provider's.
        sizes: rows of the steps that are recorded.
        longest: most tokens of a sequence.
    """

    arena_bytes = 0

    def __init__(
        self, eager: EagerModel, capture: Capture, sizes: Sequence[int], longest: int
    ) -> None:
        self._eager = eager
        self.capture_sizes = sizes
        self._capture: Capture | None = capture
        self._longest = longest
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._last: tuple[Array, Array] | None = None
        self.description = f"eager, decode steps up to {max(sizes)} rows from graphs"

    @property
    def decoder(self) -> Decoder:
        return self._eager.decoder

    @property
    def tapped(self) -> Sequence[Array]:
        return self._eager.tapped

    @property
    def meters(self) -> list[OpMeter]:
        return self._eager.meters

    def forward(self, inputs: StepInputs, rows: Array) -> Array:
        self._last = None
        one_by_one = rows is not inputs.sampling_rows or self._eager.timed
        if one_by_one or not inputs.fixed:
            return self._eager.forward(inputs, rows)
        key = len(inputs.input_ids), 0 if inputs.adapter is None else len(inputs.adapter)
        recorded = self._recorded.get(key)
        if recorded is None:
            self._last = self._first(key, inputs)
        else:
            recorded.tables.update(inputs.metadata)
            recorded.graph.replay()
            self._last = recorded.hidden, recorded.logits
        return self._last[0]

    def logits(self, hidden: Array) -> Array:
        if self._last is not None and hidden is self._last[0]:
            return self._last[1]
        return self._eager.logits(hidden)

    def _first(self, key: tuple[int, int], inputs: StepInputs) -> tuple[Array, Array]:
        """Compute a step of a new size, and record it."""
        capture = self._capture
        if capture is None:
            return self._step(inputs)
        tables = capture.fix(inputs.metadata, self._longest)
        results = self._step(inputs)
        tables.update(inputs.metadata)
        row_bytes = sum(array.nbytes for array in results) // key[0]
        try:
            graph, again = capture.record(
                lambda: self._step(inputs), max(self.capture_sizes) * row_bytes
            )
        except RuntimeError as error:  # torch's, of a driver or a lack of memory
            logger.warning(
                "Cannot capture a step of %d rows: %s. Steps run op by op from now on; "
                "--enforce-eager silences this.", key[0], error,
            )  # fmt: skip
            self._capture = None
        else:
            self._recorded[key] = _Recorded(graph, tables, *again)
        return results

    def _step(self, inputs: StepInputs) -> tuple[Array, Array]:
        hidden = self._eager.forward(inputs, inputs.sampling_rows)
        return hidden, self._eager.logits(hidden)
