"""Records a function as a plan.

    record(ops, function, inputs)         function(table, *inputs) runs once, on one row; `table`
        │                                 notes every op, its buffers and weights
        ▼
    Plan                                  see `ops.plans.plan`

Calling an op hands at least one op to the native kernels. Nothing has to be declared, so a new op,
or a new architecture, needs no code here. A result has as many rows as the first array that its op
is given.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.errors import ConfigError
from quire.ops.array import Array, address
from quire.ops.interface import Ops
from quire.ops.memory import empty
from quire.ops.metadata import AttentionMetadata
from quire.ops.plans.arena import Lifetime, assign_offsets
from quire.ops.plans.meter import PlanMeter
from quire.ops.plans.plan import (
    Buffer,
    Input,
    Inputs,
    Plan,
    View,
    arrays_of,
)

_FIX = "Use --enforce-eager."


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
        self._input_arrays = arrays_of(inputs)
        self._buffers: list[Buffer] = []
        self._keep: list[object] = []
        self._calls = 0
        self._meter = PlanMeter(self._native, modules, ops.sources)
        self._known: list[tuple[int, int, View | Input]] = []  # where it begins and ends
        for i, array in enumerate(self._input_arrays):
            self._note(array, Input(i))

    def record(self, function: Callable[..., Array | tuple[Array, ...]], max_rows: int) -> Plan:
        output = function(self._ops.wrapped(self._recorded), *map(_guarded, self._inputs))
        results = [
            self._result(each) for each in (output if isinstance(output, tuple) else (output,))
        ]
        arena = self._link(max_rows)
        return Plan(self._native, self._buffers, results, arena, self._meter, self._keep)

    def _result(self, output: object) -> View:
        """Keep what the function returns until the end of the plan."""
        assert isinstance(output, np.ndarray)
        result = self._view(output)
        if not isinstance(result, View):
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
        given = (*args, *kwargs.values())
        symbols = tuple(self._symbol(name, arg) for arg in given)
        rows_input = self._rows_input(name, symbols)
        recorded = len(self._native)
        self._native.record(rows_input)
        try:
            results = op(*map(_plain, args), **{key: _plain(arg) for key, arg in kwargs.items()})
        finally:
            self._native.record(-1)
        if len(self._native) == recorded:
            raise ConfigError(f"{name} has no native kernel.", fix=_FIX)
        self._meter.note(name, given, results)
        outputs = results if isinstance(results, tuple) else (results,)
        for output in outputs:
            self._new(output, rows_input)
        self._keep += [arg for arg, symbol in zip(given, symbols, strict=True) if arg is symbol]
        self._calls += 1
        outputs = tuple(map(_guarded, outputs))
        return outputs if isinstance(results, tuple) else outputs[0]

    def _rows_input(self, name: str, symbols: tuple[Any, ...]) -> int:
        """Return the input whose number of rows a call's results have."""
        for symbol in symbols:
            if isinstance(symbol, Input):
                return symbol.index
            if isinstance(symbol, View):
                return self._buffers[symbol.buffer].rows_input
        raise ConfigError(f"{name} takes nothing that has a step's rows.", fix=_FIX)

    def _new(self, output: HostArray, rows_input: int) -> None:
        """Note a result of the current call; one that it was given is changed in place."""
        if not isinstance(self._find(output), View):
            self._note(output, View(len(self._buffers), tuple(output.shape[1:])))
            self._buffers.append(Buffer(output, rows_input, self._calls, self._calls))

    def _symbol(self, name: str, arg: Any) -> Any:
        """Return what stands for a call's argument in other steps: the argument itself if it is the
        same there, None for metadata."""
        if isinstance(arg, AttentionMetadata):
            if not any(given is arg for given in self._inputs):
                raise ConfigError(f"{name} takes metadata that is no input of the step.", fix=_FIX)
            return None
        if not isinstance(arg, np.ndarray):
            return arg
        view = self._view(arg)
        if isinstance(view, View):
            buffer = self._buffers[view.buffer]
            buffer.last = self._calls
            if arg.nbytes != buffer.nbytes or not arg.flags.c_contiguous:
                raise ConfigError(f"{name} takes a part of a result.", fix=_FIX)
        return view

    def _view(self, array: HostArray) -> View | Input | HostArray:
        known = self._find(array)
        if isinstance(known, View):
            return View(known.buffer, tuple(array.shape[1:]))
        if known is None and isinstance(array, _Recorded):
            raise ConfigError("The model copies an array, which is no op.", fix=_FIX)
        return array if known is None else known

    def _note(self, array: HostArray, symbol: View | Input) -> None:
        begin = address(array)
        insort(self._known, (begin, begin + array.nbytes, symbol), key=itemgetter(0))

    def _find(self, array: HostArray) -> View | Input | None:
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
