"""What the operations of a plan take: native ones count themselves, the others are timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quire.core.op_profile import OpTime
from quire.ops.op_times import CallMeter, Labels, OpLabel, OpRuns, summed

if TYPE_CHECKING:
    from quire import _native


class _Op(NamedTuple):
    """An op in the order of the model; `place` is among the native ops, or the others."""

    label: OpLabel
    native: bool
    place: int


class PlanMeter:
    """The `OpMeter` of a plan.

    Args:
        native: the plan's native ops, those recorded from now on included.
        modules: id of a weight or of a layer's cache → module.
        sources: op → who computes it.

    Attributes:
        fallbacks: ops that Python computes, by the index that `note` gave them.
        python_ops: their names.
    """

    def __init__(
        self, native: _native.Plan, modules: Mapping[int, str], sources: Mapping[str, str]
    ) -> None:
        self.fallbacks = CallMeter()
        self.python_ops: set[str] = set()
        self._native = native
        self._labels = Labels(modules)
        self._sources = sources
        self._ops: list[_Op] = []
        self._num_native = 0

    def note(self, name: str, args: tuple[Any, ...], result: Any) -> int:
        """Record a call; return its index among the fallbacks, -1 if it is native."""
        added = range(self._num_native, len(self._native))
        self._num_native = len(self._native)
        source = self._sources.get(name, "") if added else ""
        label = self._labels.of(name, source, args, result)
        if added:
            self._ops += [_Op(label, True, place) for place in added]
            return -1
        index = self.fallbacks.add(label)
        self._ops.append(_Op(label, False, index))
        return index

    def count_ops(self, on: bool) -> None:
        self._native.count(on)
        self.fallbacks.count(on)

    def op_times(self) -> list[OpTime]:
        native, called = self._native.counts(), self.fallbacks.counts
        if called is None:
            return []
        tallies = self._native.tallies()
        return summed(
            ((op.label, (native if op.native else called)[op.place]) for op in self._ops),
            {op.label: t for op in self._ops if op.native and (t := tallies[op.place])},
        )

    def trace_ops(self, max_runs: int) -> None:
        self._native.trace(max_runs)
        self.fallbacks.trace(max_runs)

    def op_runs(self) -> OpRuns:
        native = np.frombuffer(self._native.runs(), dtype=np.int64).reshape(-1, 6)
        called = self.fallbacks.runs()
        called[:, 0] += self._num_native
        runs = np.concatenate([native, called])
        labels = [op.label for op in self._ops if op.native] + self.fallbacks.labels
        return OpRuns(labels, runs[np.argsort(runs[:, 1], kind="stable")])
