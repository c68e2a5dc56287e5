"""The rows that pipeline stages hand on, with those that a draft head reads of earlier layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quire.core.batch import Hops
from quire.core.model_config import ModelConfig
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.runner.inputs import StepInputs

if TYPE_CHECKING:
    from quire.parallel.stage import Stage


class StageRows:
    """Takes a pass's rows from the stage before, and gives them to the one behind.

    Rows that enter the layers of `ModelConfig.head_taps` go on beside them, to the last stage.

    Args:
        model: this stage's.

    Attributes:
        carried: of this pass, the tapped rows of earlier stages.
    """

    def __init__(self, stage: Stage, ops: Ops, model: ModelConfig) -> None:
        self.carried: Sequence[Array] = ()
        self._stage = stage
        self._ops = ops
        self._taps, self._width = model.head_taps, model.hidden_size

    def take(self) -> Array:
        """Return the rows, and keep those beside them; raises as `Link.receive`."""
        rows = self._stage.take()
        if not self._taps:
            return self._ops.array(rows)
        parts = np.split(rows, rows.shape[1] // self._width, axis=1)
        first, *self.carried = [self._ops.array(np.ascontiguousarray(part)) for part in parts]
        return first

    def wanted(self, inputs: StepInputs) -> Array:
        """Return the rows that the model must return: with taps all, because heads read all."""
        if not self._taps:
            return inputs.sampling_rows
        return self._ops.array(np.arange(len(inputs.input_ids)))

    def give(self, rows: Array, tapped: Sequence[Array]) -> None:
        """Hand on rows, and those that entered this stage's tapped layers."""
        host = self._ops.numpy(rows)
        if self._taps:
            beside = map(self._ops.numpy, (*self.carried, *tapped))
            host = np.concatenate([host, *beside], axis=1)
        self._stage.give(host)

    def take_hops(self) -> Hops:
        """See `Stage.take_hops`."""
        return self._stage.take_hops()
