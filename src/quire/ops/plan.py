"""Plans: straight-line code on ops, recorded once and replayed natively with any number of rows.

    record(ops, function, inputs)         function(table, *inputs) runs once, on one row; `table`
        │                                 notes every op, its buffers and weights
        ▼
    native ops │ fallback │ native ops    a flat list; runs of native ops are segments, each one
        ▲                                 call into C++; what Python computes stands between
        │
    plan.run(inputs)                      the same ops on the step's rows, in the plan's own memory

An op is native if calling it hands at least one op to the native kernels; any other is a fallback.
Nothing has to be declared, so a new op, or a new architecture, needs no code here. A result has
as many rows as the first array that its op is given.
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.errors import ConfigError
from quire.ops.arena import Lifetime, assign_offsets
from quire.ops.array import Array, address
from quire.ops.interface import Ops
from quire.ops.memory import empty
from quire.ops.metadata import AttentionMetadata
from quire.ops.plan_meter import PlanMeter
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire import _native

Inputs = Sequence[Any]
"""What a step brings along: arrays, and `AttentionMetadata`."""


@dataclass(slots=True)
class _Buffer:
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


class _View(NamedTuple):
    """A buffer, seen as [rows, *tail]."""

    buffer: int
    tail: tuple[int, ...]


class WholePlan(NamedTuple):
    """A plan that native code can run, and where its first result is.

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
class _Input:
    """An array among the inputs, those of the metadata included."""

    index: int


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The metadata among the inputs."""

    index: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """Native ops [first, last)."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Fallback:
    """An op that Python computes; among its arguments are `_View`, `_Input` and `_Metadata`."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[_View, ...]
    rows_input: int
    number: int


class Plan:
    """Made by `record`.

    Attributes:
        num_ops: ops in all.
        num_segments: runs of native ops.
        python_ops: ops without a kernel, which Python computes.
        arena_bytes: memory of the results, at the most rows.
        meter: what its ops take.
        outputs: everything that the recorded function returns, from the last run.
    """

    def __init__(
        self,
        native: _native.Plan,
        parts: list[_Segment | _Fallback],
        buffers: list[_Buffer],
        results: Sequence[_View],
        arena: HostArray,
        meter: PlanMeter,
        keep: list[object],
    ) -> None:
        self._native = native
        self.meter = meter
        self._parts = parts
        self._buffers = [
            (b.rows_input, b.region, b.offset, b.nbytes, b.array.dtype) for b in buffers
        ]
        self._results = results
        self.outputs: tuple[HostArray, ...] = ()
        self._arena = arena
        self._bound: list[HostArray] = []
        self._keep = keep  # weights and caches, whose addresses the native plan holds
        self.num_ops = len(native) + sum(isinstance(part, _Fallback) for part in parts)
        self.num_segments = sum(isinstance(part, _Segment) for part in parts)
        self.python_ops = meter.python_ops
        self.arena_bytes = arena.nbytes

    def run(self, inputs: Inputs) -> HostArray:
        """Return what the recorded function returns for these inputs, or the first of it.

        The result and `outputs` lie in the plan's memory and hold until the next run. One run at
        a time.

        Raises:
            IndexError: a token, position or slot outside its table.
            ValueError: more rows than the plan was made for.
        """
        arrays = _arrays(inputs)
        if len(arrays) != len(self._bound) or not all(map(is_, arrays, self._bound)):
            self._bind(arrays)
        self._native.begin(self._addresses)
        for part in self._parts:
            if isinstance(part, _Segment):
                self._native.run(part.first, part.last)
            elif arrays[part.rows_input].shape[0] > 0:
                self._fall_back(part, inputs, arrays)
        return self.outputs[0]

    @property
    def whole(self) -> WholePlan | None:
        """Return what native code needs to run the plan; None if Python computes a part."""
        if len(self._parts) != 1 or not isinstance(self._parts[0], _Segment):
            return None
        _, region, offset, nbytes, dtype = self._buffers[self._results[0].buffer]
        start = address(self._arena) + region
        return WholePlan(self._native, start, offset, nbytes // dtype.itemsize)

    def result(self, inputs: Inputs) -> HostArray:
        """Return the memory of what `run` returns for these inputs, filled with zeros."""
        self._bind(_arrays(inputs))
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

    def _fall_back(self, part: _Fallback, inputs: Inputs, arrays: list[HostArray]) -> None:
        def resolve(arg: Any) -> Any:
            if isinstance(arg, _View):
                return self._array(arg, arrays)
            if isinstance(arg, _Input):
                return arrays[arg.index]
            return inputs[arg.index] if isinstance(arg, _Metadata) else arg

        meter = self.meter.fallbacks
        begin = time.monotonic_ns() if meter.active else 0
        args = [resolve(arg) for arg in part.args]
        kwargs = {name: resolve(arg) for name, arg in part.kwargs.items()}
        result = part.op(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        for view, output in zip(part.outputs, results, strict=True):
            np.copyto(self._array(view, arrays), output)
        if begin:
            took = time.monotonic_ns() - begin
            meter.note(part.number, begin, took, (*args, *kwargs.values()), result)

    def _array(self, view: _View, arrays: list[HostArray]) -> HostArray:
        rows_input, region, offset, nbytes, dtype = self._buffers[view.buffer]
        rows = arrays[rows_input].shape[0]
        start = region + offset * rows
        memory = self._arena[start : start + nbytes * rows]
        return memory.view(dtype).reshape(rows, *view.tail)


def record(
    ops: Ops,
    function: Callable[..., Array | tuple[Array, ...]],
    inputs: Inputs,
    max_rows: int,
    modules: Mapping[int, str] | None = None,
) -> Plan:
    """Return the plan of `function`, which computes one or more arrays [rows, …] by ops alone.

    Args:
        ops: native ones; `ops.new_plan` is there.
        function: called once, with a table of ops to use and with `inputs`. It may view a result in
            another shape.
        inputs: one row, valid: what `function` reads besides weights and caches.
        max_rows: most rows of any input.
        modules: id of a weight or a layer's cache → the module that profiles name.

    Raises:
        ConfigError: the function does something that cannot be recorded.
    """
    return _Recorder(ops, inputs, modules or {}).record(function, max_rows)


class _Recorder:
    """Notes what a function does with a table of ops."""

    def __init__(self, ops: Ops, inputs: Inputs, modules: Mapping[int, str]) -> None:
        if ops.new_plan is None:
            raise ConfigError("only native ops can be recorded.", fix="Use --enforce-eager.")
        self._ops = ops
        self._native = ops.new_plan()
        self._inputs = inputs
        self._input_arrays = _arrays(inputs)
        self._parts: list[_Segment | _Fallback] = []
        self._buffers: list[_Buffer] = []
        self._keep: list[object] = []
        self._calls = 0
        self._meter = PlanMeter(self._native, modules, ops.sources)
        self._known: list[tuple[int, int, _View | _Input]] = []  # where it begins and ends
        for i, array in enumerate(self._input_arrays):
            self._note(array, _Input(i))

    def record(self, function: Callable[..., Array | tuple[Array, ...]], max_rows: int) -> Plan:
        output = function(self._ops.wrapped(self._recorded), *map(_guarded, self._inputs))
        results = [
            self._result(each) for each in (output if isinstance(output, tuple) else (output,))
        ]
        arena = self._link(max_rows)
        return Plan(
            self._native, self._parts, self._buffers, results, arena, self._meter, self._keep
        )

    def _result(self, output: object) -> _View:
        """Keep what the function returns until the end of the plan."""
        assert isinstance(output, np.ndarray)
        result = self._view(output)
        if not isinstance(result, _View):
            raise ConfigError("what the function returns is not computed by an op.", fix=_FIX)
        self._buffers[result.buffer].last = self._calls
        return result

    def _recorded(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, op, args, kwargs)

        return call

    def _call(
        self, name: str, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        symbols = tuple(self._symbol(name, arg) for arg in args)
        named = {key: self._symbol(name, arg) for key, arg in kwargs.items()}
        rows_input = self._rows_input(name, (*symbols, *named.values()))
        args = tuple(map(_plain, args))
        kwargs = {key: _plain(arg) for key, arg in kwargs.items()}
        first = len(self._native)
        self._native.record(rows_input)
        try:
            results = op(*args, **kwargs)
        finally:
            self._native.record(-1)
        last = len(self._native)
        number = self._meter.note(name, (*args, *kwargs.values()), results)
        outputs = results if isinstance(results, tuple) else (results,)
        if last == first:
            # The result may be a view of an argument: the plan's is a buffer of its own.
            outputs = tuple(np.array(output, order="C") for output in outputs)
            views = tuple(self._new(output, rows_input) for output in outputs)
            self._meter.python_ops.add(name)
            self._parts.append(_Fallback(op, symbols, named, views, rows_input, number))
        else:
            for output in outputs:
                self._new(output, rows_input)
            previous = self._parts[-1] if self._parts else None
            if isinstance(previous, _Segment):
                first = previous.first
                self._parts.pop()
            self._parts.append(_Segment(first, last))
        self._keep += [arg for arg, symbol in zip(args, symbols, strict=True) if arg is symbol]
        self._keep += [arg for key, arg in kwargs.items() if arg is named[key]]
        outputs = tuple(map(_guarded, outputs))
        self._calls += 1
        return outputs if isinstance(results, tuple) else outputs[0]

    def _rows_input(self, name: str, symbols: tuple[Any, ...]) -> int:
        """Return the input whose number of rows a call's results have."""
        for symbol in symbols:
            if isinstance(symbol, _Input):
                return symbol.index
            if isinstance(symbol, _View):
                return self._buffers[symbol.buffer].rows_input
        raise ConfigError(f"{name} takes nothing that has a step's rows.", fix=_FIX)

    def _new(self, output: HostArray, rows_input: int) -> _View:
        """Note a result of the current call; one that it was given is changed in place."""
        known = self._find(output)
        if isinstance(known, _View):
            return known
        view = _View(len(self._buffers), tuple(output.shape[1:]))
        self._note(output, view)
        self._buffers.append(_Buffer(output, rows_input, self._calls, self._calls))
        return view

    def _symbol(self, name: str, arg: Any) -> Any:
        """Return the symbol that replaces a call's argument in other steps."""
        if isinstance(arg, AttentionMetadata):
            for i, given in enumerate(self._inputs):
                if given is arg:
                    return _Metadata(i)
            raise ConfigError(f"{name} takes metadata that is no input of the step.", fix=_FIX)
        if not isinstance(arg, np.ndarray):
            return arg
        view = self._view(arg)
        if isinstance(view, _View):
            buffer = self._buffers[view.buffer]
            buffer.last = self._calls
            if arg.nbytes != buffer.nbytes or not arg.flags.c_contiguous:
                raise ConfigError(f"{name} takes a part of a result.", fix=_FIX)
        return view

    def _view(self, array: HostArray) -> _View | _Input | HostArray:
        known = self._find(array)
        if isinstance(known, _View):
            return _View(known.buffer, tuple(array.shape[1:]))
        if known is None and isinstance(array, _Recorded):
            raise ConfigError("The model copies an array, which is no op.", fix=_FIX)
        return array if known is None else known

    def _note(self, array: HostArray, symbol: _View | _Input) -> None:
        begin = address(array)
        insort(self._known, (begin, begin + array.nbytes, symbol), key=itemgetter(0))

    def _find(self, array: HostArray) -> _View | _Input | None:
        """Return the result or the input in whose memory an array lies."""
        at = address(array)
        index = bisect_right(self._known, at, key=itemgetter(0)) - 1
        if index < 0 or at >= self._known[index][1]:
            return None
        return self._known[index][2]

    def _link(self, max_rows: int) -> HostArray:
        """Place the buffers; returns the memory that they lie in."""
        total = 0
        for rows_input in sorted({b.rows_input for b in self._buffers}):
            region = [b for b in self._buffers if b.rows_input == rows_input]
            offsets, row_bytes = assign_offsets(
                [Lifetime(b.nbytes, b.first, b.last) for b in region]
            )
            for b, offset in zip(region, offsets, strict=True):
                b.region, b.offset = total, offset
                self._native.add_buffer(address(b.array), b.nbytes, rows_input, total, offset)
            total += row_bytes * max_rows
        for i, array in enumerate(self._input_arrays):
            self._native.add_input(address(array), array.nbytes, i)
        arena = empty((total,), np.dtype(np.uint8))
        try:
            self._native.link(address(arena), max_rows)
        except ValueError as error:
            raise ConfigError(f"The model cannot be recorded: {error}.", fix=_FIX) from error
        return arena


_FIX = "Use --enforce-eager."


class _Recorded(np.ndarray[Any, Any]):
    """An input or a result while a plan is recorded.

    It refuses what numpy would compute: a replay would not repeat it.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        raise ConfigError(f"The model calls numpy.{ufunc.__name__}, which is no op.", fix=_FIX)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise ConfigError(f"The model calls numpy.{func.__name__}, which is no op.", fix=_FIX)


def _guarded(value: Any) -> Any:
    return value.view(_Recorded) if isinstance(value, np.ndarray) else value


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Recorded) else value


def _arrays(inputs: Inputs) -> list[HostArray]:
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
