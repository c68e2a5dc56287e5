"""Plans: straight-line code on ops, recorded once and replayed natively with any number of rows.

    record(ops, function, inputs)         function(table) runs once, on one row; `table` notes
        │                                 every op, its buffers and weights
        ▼
    native ops │ fallback │ native ops    a flat list; runs of native ops are segments, each one
        ▲                                 call into C++; what torch computes stands between
        │
    plan.run(inputs)                      the same ops on the step's rows, in the plan's own memory

An op is native if calling it hands at least one op to the native kernels; any other is a fallback.
Nothing has to be declared, so a new op, or a new architecture, needs no code here. A result has
as many rows as the first tensor that its op is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from quire.core.errors import ConfigError
from quire.ops.arena import Lifetime, assign_offsets
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.memory import empty
from quire.ops.metadata import AttentionMetadata
from quire.ops.plan_meter import PlanMeter

if TYPE_CHECKING:
    from quire import _native

Inputs = Sequence[Any]
"""What a step brings along: arrays, and `AttentionMetadata`."""


@dataclass(slots=True)
class _Buffer:
    """What an op computes: [rows, *tail], with the rows of input `rows_input`.

    `tensor` is its one row while the plan is recorded.
    """

    tensor: Tensor
    rows_input: int
    first: int
    last: int
    region: int = 0
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.itemsize


class _View(NamedTuple):
    """A buffer, seen as [rows, *tail]."""

    buffer: int
    tail: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Input:
    """A tensor among the inputs, those of the metadata included."""

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
    """An op that torch computes; among its arguments are `_View`, `_Input` and `_Metadata`."""

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
        torch_ops: op that torch computes → why.
        arena_bytes: memory of the results, at the most rows.
        meter: what its ops take.
    """

    def __init__(
        self,
        native: _native.Plan,
        parts: list[_Segment | _Fallback],
        buffers: list[_Buffer],
        result: _View,
        arena: Tensor,
        meter: PlanMeter,
        keep: list[object],
    ) -> None:
        self._native = native
        self.meter = meter
        self._parts = parts
        self._buffers = [
            (b.rows_input, b.region, b.offset, b.nbytes, b.tensor.dtype) for b in buffers
        ]
        self._result = result
        self._arena = arena
        self._bound: list[Tensor] = []
        self._keep = keep  # weights and caches, whose addresses the native plan holds
        self.num_ops = len(native) + sum(isinstance(part, _Fallback) for part in parts)
        self.num_segments = sum(isinstance(part, _Segment) for part in parts)
        self.torch_ops = meter.torch_ops
        self.arena_bytes = arena.numel()

    def run(self, inputs: Inputs) -> Tensor:
        """What the recorded function returns for these inputs: [rows, …].

        The result lies in the plan's memory and holds until the next run. One run at a time.

        Raises:
            IndexError: a token, position or slot outside its table.
            ValueError: more rows than the plan was made for.
        """
        tensors = _tensors(inputs)
        if len(tensors) != len(self._bound) or not all(map(is_, tensors, self._bound)):
            self._bind(tensors)
        self._native.begin(self._addresses)
        for part in self._parts:
            if isinstance(part, _Segment):
                self._native.run(part.first, part.last)
            elif tensors[part.rows_input].shape[0] > 0:
                self._fall_back(part, inputs, tensors)
        return self._output

    def precede(self, following: Plan) -> None:
        """`following` runs next, after some Python: its first weights are fetched meanwhile."""
        self._native.precede(following._native)

    def _bind(self, tensors: list[Tensor]) -> None:
        """Look up where these inputs lie, and what they give; most steps bring the last one's."""
        self._addresses = [(t.data_ptr(), t.shape[0], t.stride(0)) for t in tensors]
        self._output = self._tensor(self._result, tensors)
        self._bound = tensors

    def _fall_back(self, part: _Fallback, inputs: Inputs, tensors: list[Tensor]) -> None:
        def resolve(arg: Any) -> Any:
            if isinstance(arg, _View):
                return self._tensor(arg, tensors)
            if isinstance(arg, _Input):
                return tensors[arg.index]
            return inputs[arg.index] if isinstance(arg, _Metadata) else arg

        meter = self.meter.fallbacks
        begin = time.monotonic_ns() if meter.active else 0
        args = [resolve(arg) for arg in part.args]
        kwargs = {name: resolve(arg) for name, arg in part.kwargs.items()}
        result = part.op(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        for view, output in zip(part.outputs, results, strict=True):
            self._tensor(view, tensors).copy_(output)
        if begin:
            took = time.monotonic_ns() - begin
            meter.note(part.number, begin, took, (*args, *kwargs.values()), result)

    def _tensor(self, view: _View, tensors: list[Tensor]) -> Tensor:
        rows_input, region, offset, nbytes, dtype = self._buffers[view.buffer]
        rows = tensors[rows_input].shape[0]
        start = region + offset * rows
        memory = self._arena[start : start + nbytes * rows]
        return memory.view(dtype).view(rows, *view.tail)


def record(
    ops: Ops,
    function: Callable[[Ops], Array],
    inputs: Inputs,
    max_rows: int,
    modules: Mapping[int, str] | None = None,
) -> Plan:
    """The plan of `function`, which computes a tensor [rows, …] by ops alone.

    Args:
        ops: native ones; `ops.new_plan` is there.
        function: called once, with a table of ops to use. It may view a result in another shape.
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
        self._input_tensors = _tensors(inputs)
        self._parts: list[_Segment | _Fallback] = []
        self._buffers: list[_Buffer] = []
        self._keep: list[object] = []
        self._calls = 0
        self._meter = PlanMeter(self._native, modules, ops.sources)
        self._known: dict[int, _View | _Input] = {
            _storage(t): _Input(i) for i, t in enumerate(self._input_tensors)
        }

    def record(self, function: Callable[[Ops], Array], max_rows: int) -> Plan:
        with _OnlyOps(self._known):
            output = function(self._ops.wrapped(self._recorded))
        assert isinstance(output, Tensor)
        result = self._view(output)
        if not isinstance(result, _View):
            raise ConfigError("what the function returns is not computed by an op.", fix=_FIX)
        self._buffers[result.buffer].last = self._calls
        arena = self._link(max_rows)
        return Plan(
            self._native, self._parts, self._buffers, result, arena, self._meter, self._keep
        )

    def _recorded(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return self._call(name, op, args, kwargs)

        return call

    def _call(
        self, name: str, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        symbols = tuple(self._symbol(name, arg) for arg in args)
        named = {key: self._symbol(name, arg) for key, arg in kwargs.items()}
        rows_input = self._rows_input(name, (*symbols, *named.values()))
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
            # Torch's result may be a view of an argument: the plan's is a buffer of its own.
            outputs = tuple(
                output.clone(memory_format=torch.contiguous_format) for output in outputs
            )
            views = tuple(self._new(output, rows_input) for output in outputs)
            self._meter.torch_ops[name] = self._ops.torch_reasons.get(name, "no native kernel")
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
        self._calls += 1
        return outputs if isinstance(results, tuple) else outputs[0]

    def _rows_input(self, name: str, symbols: tuple[Any, ...]) -> int:
        """The input whose rows a call's results have."""
        for symbol in symbols:
            if isinstance(symbol, _Input):
                return symbol.index
            if isinstance(symbol, _View):
                return self._buffers[symbol.buffer].rows_input
        raise ConfigError(f"{name} takes nothing that has a step's rows.", fix=_FIX)

    def _new(self, output: Tensor, rows_input: int) -> _View:
        """Note a result of the current call; one that it was given is changed in place."""
        known = self._known.get(_storage(output))
        if isinstance(known, _View):
            return known
        view = _View(len(self._buffers), tuple(output.shape[1:]))
        self._known[_storage(output)] = view
        self._buffers.append(_Buffer(output, rows_input, self._calls, self._calls))
        return view

    def _symbol(self, name: str, arg: Any) -> Any:
        """What stands for the argument of a call in other steps."""
        if isinstance(arg, AttentionMetadata):
            for i, given in enumerate(self._inputs):
                if given is arg:
                    return _Metadata(i)
            raise ConfigError(f"{name} takes metadata that is no input of the step.", fix=_FIX)
        if not isinstance(arg, Tensor):
            return arg
        view = self._view(arg)
        if isinstance(view, _View):
            buffer = self._buffers[view.buffer]
            buffer.last = self._calls
            if arg.numel() * arg.itemsize != buffer.nbytes or not arg.is_contiguous():
                raise ConfigError(f"{name} takes a part of a result.", fix=_FIX)
        return view

    def _view(self, tensor: Tensor) -> _View | _Input | Tensor:
        known = self._known.get(_storage(tensor))
        if isinstance(known, _View):
            return _View(known.buffer, tuple(tensor.shape[1:]))
        return tensor if known is None else known

    def _link(self, max_rows: int) -> Tensor:
        """Place the buffers; returns the memory that they lie in."""
        total = 0
        for rows_input in sorted({b.rows_input for b in self._buffers}):
            region = [b for b in self._buffers if b.rows_input == rows_input]
            offsets, row_bytes = assign_offsets(
                [Lifetime(b.nbytes, b.first, b.last) for b in region]
            )
            for b, offset in zip(region, offsets, strict=True):
                b.region, b.offset = total, offset
                self._native.add_buffer(b.tensor.data_ptr(), b.nbytes, rows_input, total, offset)
            total += row_bytes * max_rows
        for i, tensor in enumerate(self._input_tensors):
            nbytes = tensor.numel() * tensor.itemsize
            self._native.add_input(tensor.data_ptr(), nbytes, i)
        arena = empty((total,), torch.uint8)
        try:
            self._native.link(arena.data_ptr(), max_rows)
        except ValueError as error:
            raise ConfigError(f"The model cannot be recorded: {error}.", fix=_FIX) from error
        return arena


_FIX = "Use --enforce-eager."


class _OnlyOps(TorchFunctionMode):
    """Refuses what torch would compute while a plan is recorded: a replay would not repeat it."""

    def __init__(self, known: dict[int, Any]) -> None:
        super().__init__()
        self._known = known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and _storage(result) not in self._known:
            raise ConfigError(f"The model calls {func}, which is no op.", fix=_FIX)
        return result


def _tensors(inputs: Inputs) -> list[Tensor]:
    tensors: list[Tensor] = []
    for given in inputs:
        if isinstance(given, AttentionMetadata):
            tensors += (
                given.query_start_loc, given.seq_lens, given.block_tables, given.slot_mapping
            )  # fmt: skip
        else:
            tensors.append(given)
    return tensors


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
