"""A draft head for its proposer: replayed from plans, or called op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from quire.core.config import EngineConfig
from quire.core.dtypes import dtype_of
from quire.ops.array import Array
from quire.ops.metadata import AttentionMetadata
from quire.ops.op_times import OpMeter, TimedOps
from quire.ops.plans.plan import Plan
from quire.ops.plans.recorder import record
from quire.runner.kv_tensors import allocate_kv_caches
from quire.runner.recording import one_token

if TYPE_CHECKING:
    from quire.models.draft_head import DraftHead
    from quire.ops.interface import Ops


class HeadModel:
    """The ops of a draft head, on a KV cache with the target's block numbers.

    Results are valid until the next call of the same method.

    Args:
        config: of the head, with the target's limits.
        max_tokens: most tokens of one `forward`.

    Attributes:
        meters: of its ops.
    """

    def __init__(
        self, config: EngineConfig, head: DraftHead, ops: Ops, *, num_blocks: int, max_tokens: int
    ) -> None:
        self.head = head
        self._caches = allocate_kv_caches(
            ops, config.model, num_blocks, config.block_size, dtype_of(config.kv_cache_dtype),
            scales=config.calculate_kv_scales,
        )  # fmt: skip
        draft = config.model.draft_head
        assert draft is not None
        self.row_size = draft.row_size * max(len(draft.taps), 1)
        self._ops = ops
        self._plan: Plan | None = None
        timed = self._timed = TimedOps(ops, head.modules)
        self.meters: list[OpMeter] = [timed]
        self.logits: Callable[[Array], Array] = lambda hidden: head.compute_logits(
            timed.table, hidden
        )
        self._join: Callable[[Array], Array] = lambda rows: head.join(timed.table, rows)
        if not config.enforce_eager and ops.new_plan is not None:
            self._record(config, max_tokens)

    def _record(self, config: EngineConfig, max_tokens: int) -> None:
        head, ops, dtype = self.head, self._ops, dtype_of(config.dtype)
        ids, positions, meta = one_token(ops, config.block_size)
        rows = ops.array(np.zeros(1, np.int64))
        hidden = ops.array(np.zeros((1, config.model.hidden_size), dtype))
        given = (ids, positions, hidden, meta, rows)
        self._plan = record(
            ops,
            lambda table, ids, positions, hidden, meta, rows: head.forward(
                table, ids, positions, hidden, self._caches, meta, rows
            ),
            given,
            max_tokens,
            head.modules,
        )
        result, most = self._plan.result(given), config.scheduler.max_num_seqs
        logits = record(ops, head.compute_logits, (result,), most, head.modules)
        self.logits = lambda hidden: logits.run((hidden,))
        self.meters = [self._plan.meter, logits.meter]
        if head.reads_layers:
            wide = ops.array(np.zeros((1, self.row_size), dtype))
            join = record(ops, head.join, (wide,), max_tokens, head.modules)
            self._join = lambda rows: join.run((rows,))
            self.meters.insert(0, join.meter)

    def join(self, rows: Array) -> Array:
        """Return the rows that `forward` takes, for rows of the target."""
        return self._join(rows) if self.head.reads_layers else rows

    def forward(
        self, ids: Array, positions: Array, hidden: Array, meta: AttentionMetadata, rows: Array
    ) -> tuple[Array, Array]:
        """See `DraftHead.forward`."""
        if self._plan is None:
            ops = self._timed.table
            return self.head.forward(ops, ids, positions, hidden, self._caches, meta, rows)
        self._plan.run((ids, positions, hidden, meta, rows))
        outputs, own = self._plan.outputs
        return outputs, own
