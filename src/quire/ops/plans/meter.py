"""What the operations of a plan take: native ops count themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.core.op_profile import OpTime
from quire.ops.op_times import Labels, OpLabel, OpRuns, summed

if TYPE_CHECKING:
    from quire import _native


class PlanMeter:
    """The `OpMeter` of a plan.

    Args:
        native: the plan's native ops, those recorded from now on included.
        modules: id of a weight or of a layer's cache → module.
        sources: op → who computes it.
    """

    def __init__(
        self, native: _native.Plan, modules: Mapping[int, str], sources: Mapping[str, str]
    ) -> None:
        self._native = native
        self._modules = Labels(modules)
        self._sources = sources
        self._labels: list[OpLabel] = []
        self._counting = False

    def note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Label the native ops that a call has added."""
        label = self._modules.of(name, self._sources.get(name, ""), args, result)
        self._labels += [label] * (len(self._native) - len(self._labels))

    def count_ops(self, on: bool) -> None:
        self._native.count(on)
        self._counting = on

    def op_times(self) -> list[OpTime]:
        if not self._counting:
            return []
        tallies = zip(self._labels, self._native.tallies(), strict=True)
        return summed(
            zip(self._labels, self._native.counts(), strict=True),
            {label: tally for label, tally in tallies if tally},
        )

    def trace_ops(self, max_runs: int) -> None:
        self._native.trace(max_runs)

    def op_runs(self) -> OpRuns:
        runs = np.frombuffer(self._native.runs(), dtype=np.int64).reshape(-1, 6)
        return OpRuns(self._labels, runs)
