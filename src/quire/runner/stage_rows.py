"""The rows that pipeline stages hand on, with what goes beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from quire.core.batch import Hops
from quire.core.model_config import ModelConfig
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.runner.inputs import StepInputs

if TYPE_CHECKING:
    from quire.parallel.stage import Stage


class StageRows:
    """Takes a pass's rows from the stage before, and gives them to the one behind.

    Beside them go the embeddings that layers have of their own. The rows that
    enter the layers of `ModelConfig.head_taps` go on to the last stage, for a draft head.

    Args:
        model: this stage's.

    Attributes:
        carried: of this pass, the tapped rows of earlier stages.
    """

    def __init__(self, stage: Stage, ops: Ops, model: ModelConfig) -> None:
        self.carried: Sequence[Array] = ()
        self._own: Array | None = None
        self._stage = stage
        self._ops = ops
        self._taps, self._width = model.head_taps, model.hidden_size
        self._own_columns = model.own_columns

    def take(self, inputs: StepInputs) -> StepInputs:
        """Return a step's inputs with the rows and what came beside them; raises as
        `Link.receive`."""
        rows, width, own = self._stage.take(), self._width, self._own_columns
        if not (self._taps or own):
            return replace(inputs, input_ids=self._ops.array(rows))
        ends = [*([width] if own else ()), *range(width + own, rows.shape[1], width)]
        parts = np.split(rows, ends, axis=1)
        first, *others = [self._ops.array(np.ascontiguousarray(part)) for part in parts]
        if own:
            self._own, *others = others
        self.carried = others
        return replace(inputs, input_ids=first, own=self._own)

    def wanted(self, inputs: StepInputs) -> Array:
        """Return the rows that the model must return: all, if something goes beside them."""
        if not (self._taps or self._own_columns):
            return inputs.sampling_rows
        return self._ops.array(np.arange(len(inputs.input_ids)))

    def give(self, rows: Array, tapped: Sequence[Array]) -> None:
        """Hand on rows, what came beside them, and what the model's `own_taps` are."""
        came = self.carried if self._own is None else (self._own, *self.carried)
        host = self._ops.numpy(rows)
        if came or tapped:
            host = np.concatenate([host, *map(self._ops.numpy, (*came, *tapped))], axis=1)
        self._stage.give(host)

    def take_hops(self) -> Hops:
        """See `Stage.take_hops`."""
        return self._stage.take_hops()
