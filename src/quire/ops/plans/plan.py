"""Plans: a flat list of native ops, replayed on a step's rows in the plan's own memory.

`ops.plans.recorder` makes plans from functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.core.dtypes import HostArray
from quire.ops.array import address
from quire.ops.metadata import AttentionMetadata
from quire.ops.plans.meter import PlanMeter
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire import _native

Inputs = Sequence[Any]
"""What a step brings along: arrays, and `AttentionMetadata`."""


@dataclass(slots=True)
class Buffer:
    """What an op computes: [rows, *tail], with the rows of input `rows_input`.

    `array` is its one row while the plan is recorded.
    """

    array: HostArray
    rows_input: int
    first: int
    last: int
    region: int = 0
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


class View(NamedTuple):
    """A buffer, seen as [rows, *tail]."""

    buffer: int
    tail: tuple[int, ...]


class NativePlan(NamedTuple):
    """A plan for native code, and where its first result is.

    Attributes:
        result: the address of the result of 0 rows.
        offset: bytes that each row adds to that address.
        stride: elements from row to row.
    """

    plan: _native.Plan
    result: int
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class Input:
    """An array among the inputs, those of the metadata included."""

    index: int


class Plan:
    """A recorded function (see `ops.plans.recorder.record`).

    Attributes:
        arena_bytes: memory of the results, at the most rows.
        meter: what its ops take.
        outputs: everything that the recorded function returns, from the last run.
    """

    def __init__(
        self,
        native: _native.Plan,
        buffers: list[Buffer],
        results: Sequence[View],
        arena: HostArray,
        meter: PlanMeter,
        keep: list[object],
    ) -> None:
        self._native = native
        self.meter = meter
        self._buffers = [
            (b.rows_input, b.region, b.offset, b.nbytes, b.array.dtype) for b in buffers
        ]
        self._results = results
        self.outputs: tuple[HostArray, ...] = ()
        self._arena = arena
        self._bound: list[HostArray] = []
        self._keep = keep  # weights and caches, whose addresses the native plan holds
        self.num_ops = len(native)
        self.arena_bytes = arena.nbytes

    def run(self, inputs: Inputs) -> HostArray:
        """Return what the recorded function returns for these inputs, or the first of it.

        The result and `outputs` lie in the plan's memory and hold until the next run. One run at
        a time.

        Raises:
            IndexError: a token, position or slot outside its table.
            ValueError: more rows than the plan was made for.
        """
        arrays = arrays_of(inputs)
        if len(arrays) != len(self._bound) or not all(map(is_, arrays, self._bound)):
            self._bind(arrays)
        self._native.begin(self._addresses)
        self._native.run(0, self.num_ops)
        return self.outputs[0]

    @property
    def native(self) -> NativePlan:
        """Return what native code needs to run the plan."""
        _, region, offset, nbytes, dtype = self._buffers[self._results[0].buffer]
        start = address(self._arena) + region
        return NativePlan(self._native, start, offset, nbytes // dtype.itemsize)

    def result(self, inputs: Inputs) -> HostArray:
        """Return the memory of what `run` returns for these inputs, filled with zeros."""
        self._bind(arrays_of(inputs))
        self.outputs[0].fill(0)
        return self.outputs[0]

    def precede(self, following: Plan) -> None:
        """Fetch the first weights of `following`, which runs next, while Python works."""
        self._native.precede(following._native)

    def _bind(self, arrays: list[HostArray]) -> None:
        """Look up where these inputs lie, and what they give; most steps bring the last one's."""
        self._addresses = [(address(t), t.shape[0], t.strides[0] // t.itemsize) for t in arrays]
        self.outputs = tuple(self._array(view, arrays) for view in self._results)
        self._bound = arrays

    def _array(self, view: View, arrays: list[HostArray]) -> HostArray:
        rows_input, region, offset, nbytes, dtype = self._buffers[view.buffer]
        rows = arrays[rows_input].shape[0]
        start = region + offset * rows
        memory = self._arena[start : start + nbytes * rows]
        return memory.view(dtype).reshape(rows, *view.tail)


def arrays_of(inputs: Inputs) -> list[HostArray]:
    """Return the arrays among a step's inputs, those of the metadata included."""
    arrays: list[HostArray] = []
    for given in inputs:
        if isinstance(given, AttentionMetadata):
            arrays += (
                given.query_start_loc, given.seq_lens, given.block_tables, given.slot_mapping
            )  # fmt: skip
            if given.states is not None:
                arrays += (given.states.state_from, given.states.state_to)
            if given.whole is not None:
                arrays.append(given.whole)
        else:
            arrays.append(given)
    return arrays
