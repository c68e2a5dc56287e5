"""A device that this machine does not have, for proofs that nothing is left on the wrong one.

Tensors on it are wrappers around the CPU's, of torch's device type "lazy", which no build of torch
computes on. `FakeDevice.watching` intercepts every operation of torch on this thread, and fails

- where one is given tensors of both places, unless it copies, or the host's has no dimensions (a
  number to a kernel, as on CUDA);
- where a copy that the host does not wait for reads memory that is not pinned, or that the host
  changes before it has waited;
- where a queue of copies overwrites what an operation reads that was queued behind `after`.

What comes back beside the host is garbage until the host has waited for an event behind the copy.

A capture runs the work and records its operations, with the tensors that they had. It fails where
the host reads, sends or computes something in between, because a replay would not. A replay runs
them again, on the same tensors.

What a queue copies is garbage on the device until the device is told to wait for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from quire.ops.device import Event
from quire.ops.graphs import Graph
from quire.ops.torch_ops.devices import CopyQueue, TorchAccelerator

LAZY = torch.device("lazy")
aten = torch.ops.aten
COPIES = (aten.copy_, aten._to_copy, aten.to)
"""In inference mode torch does not take `to` apart."""
READS = (aten._local_scalar_dense.default,)
GARBAGE = 0xFF


class WrongDeviceError(AssertionError):
    """What a GPU would refuse, or compute from anything."""


class OnDevice(Tensor):
    """A tensor on the fake device; `there` holds its numbers."""

    there: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, there: Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            there.shape,
            strides=there.stride(),
            storage_offset=there.storage_offset(),
            dtype=there.dtype,
            device=LAZY,
        )
        made.there = there
        return made  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise WrongDeviceError(f"{func} outside of `FakeDevice.watching`")


@dataclass(slots=True)
class FakeEvent:
    """`time` is the number of operations that were queued before it."""

    device: FakeDevice
    time: int

    def synchronize(self) -> None:
        self.device.settle(self.time)


@dataclass(slots=True)
class QueuedCopy:
    """A copy whose data is there once somebody has waited."""

    to: OnDevice
    data: Tensor
    done: bool = False

    def synchronize(self) -> None:
        if not self.done:
            self.to.there.copy_(self.data)
            self.done = True


@dataclass
class FakeDevice(TorchAccelerator):
    """See the module.

    Attributes:
        pins: bytes of every piece of pinned memory.
        faults: what was wrong so far.
        sent, read: copies to the device and from it, the copies of queues not counted.
        waited: copies to the device that the host waits for.
        queued: copies of queues.
        on_host: what torch computed that has nothing to do with the device.
        replayed: operations of graphs.
        lacks: types that it makes no tensors of.
        reserved: bytes that graphs have from the first one on.
        lent: results of graphs, which any replay overwrites.
        zeros: new memory holds zeros, for runs whose kernels compute nothing.
    """

    total_bytes: int = 2**34
    torch: torch.device = LAZY
    lacks: frozenset[torch.dtype] = frozenset()
    pins: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    sent: int = 0
    read: int = 0
    waited: int = 0
    queued: int = 0
    on_host: int = 0
    time: int = 0
    replayed: int = 0
    reserved: int = 0
    lent: list[OnDevice] = field(default_factory=list)
    zeros: bool = False
    _pinned: list[tuple[int, int]] = field(default_factory=list)
    _flying: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    _landing: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)
    _used: dict[int, int] = field(default_factory=dict)
    _tape: list[Callable[[], object]] | None = None

    @property
    def capturing(self) -> bool:
        return self._tape is not None

    def pinned(self, nbytes: int) -> Tensor:
        with _disable_current_modes():
            memory = torch.zeros(nbytes, dtype=torch.uint8)
        self.pins.append(nbytes)
        self._pinned.append((memory.data_ptr(), memory.data_ptr() + nbytes))
        return memory

    def record(self) -> Event:
        return FakeEvent(self, self.time)

    def wait(self, event: Event) -> None:
        assert isinstance(event, QueuedCopy)  # all else it does in turn
        event.synchronize()

    def copies(self) -> CopyQueue:
        return FakeQueue(self)

    def capture(self, work: Callable[[], object], reserve: int = 0) -> Graph:
        assert self._tape is None
        self.reserved = self.reserved or reserve
        self._tape = []
        try:
            work()
            return FakeGraph(self, self._tape)
        finally:
            self._tape = None

    def borrowed(self, result: Tensor) -> Tensor:
        assert isinstance(result, OnDevice)
        self.lent.append(result)
        return result

    def seconds(self, work: Callable[[], object]) -> float:
        """A microsecond for each operation."""
        begin = self.time
        work()
        return (self.time - begin) / 1e6

    def launch(self, work: Callable[[], object], tensors: Sequence[OnDevice]) -> None:
        """A kernel that reads and writes these tensors."""
        self.time += 1
        self._used |= {_storage(t): self.time for t in tensors}

        def run() -> None:
            with _disable_current_modes():
                work()

        run()
        if self._tape is not None:
            self._tape.append(run)

    def memory(self) -> tuple[int, int]:
        return 0, self.total_bytes

    @contextmanager
    def watching(self) -> Iterator[FakeDevice]:
        """Raises what was wrong at its end too: an engine goes on after a step that failed."""
        self.faults.clear()
        with _Watch(self):
            yield self
        self.settle()
        if self.faults:
            raise WrongDeviceError("; ".join(self.faults))

    def wrong(self, what: str) -> WrongDeviceError:
        """The error of a fault."""
        self.faults.append(what)
        return WrongDeviceError(what)

    def settle(self, time: int | None = None) -> None:
        """The host has waited until then, or for all: what it may have written since must not have
        been on its way."""
        landing, self._landing = self._landing, []
        flying, self._flying = self._flying, []
        with _disable_current_modes(), torch.inference_mode():
            for begun, to, data in landing:
                if time is not None and begun >= time:
                    self._landing.append((begun, to, data))
                else:
                    to.copy_(data)
            for begun, source, sent in flying:
                if time is not None and begun >= time:
                    self._flying.append((begun, source, sent))
                elif not torch.equal(source, sent):
                    raise self.wrong("the host wrote to memory that was still being copied")

    def fly(self, source: Tensor) -> None:
        """`source` is read by a copy that the host does not wait for."""
        begin = source.data_ptr()
        if source.numel() and not any(a <= begin < b for a, b in self._pinned):
            raise self.wrong("a copy beside the host reads memory that is not pinned")
        self._flying.append((self.time, source, source.clone()))

    def land(self, to: Tensor, source: OnDevice) -> None:
        """`to` holds garbage until the host has waited for the copy."""
        begin = to.data_ptr()
        if not any(a <= begin < b for a, b in self._pinned):
            raise self.wrong("a copy beside the host writes memory that is not pinned")
        self.read += 1
        self._landing.append((self.time, to, source.there.clone()))
        to.view(torch.uint8).fill_(GARBAGE)
        self.time += 1

    def last_use(self, tensor: OnDevice) -> int:
        return self._used.get(_storage(tensor), 0)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation, after it was checked."""
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        ours = [t for t in tensors if isinstance(t, OnDevice)]
        others = [t for t in tensors if not isinstance(t, OnDevice)]
        named = kwargs.get("device")
        if not ours and named != LAZY:
            self.on_host += not func.is_view  # as numpy's views are
            if self._tape is not None and not func.is_view and tensors:
                raise self.wrong(f"a capture computes on the host: {func}")
            return func(*args, **kwargs)
        crossing = func.overloadpacket in COPIES
        if ours and any(t.ndim for t in others) and not crossing:
            shapes = [(str(t.device), tuple(t.shape)) for t in tensors]
            raise self.wrong(f"{func} of tensors on different devices: {shapes}")
        if func is aten.copy_.default:
            there = isinstance(args[0], OnDevice)
        else:
            there = named == LAZY if named is not None else func not in READS
        if self._tape is not None and ((ours and not there) or (crossing and others)):
            raise self.wrong(f"a capture copies between host and device: {func}")
        waits = not (func is aten.copy_.default and len(args) > 2 and args[2])
        if ours and not there and not waits:
            self.land(*args[:2])
            return args[0]
        if ours and not there:
            self.read += 1
            self.settle()
        elif crossing and others:
            self.sent += 1
            self.waited += waits
            if not waits:
                self.fly(args[1])
        if not func.is_view:
            self.time += 1
            self._used |= {_storage(t): self.time for t in ours}
        return self._compute(func, args, kwargs, ours, there=there)

    def _compute(
        self, func: Any, args: Any, kwargs: Any, ours: list[OnDevice], *, there: bool
    ) -> Any:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        # A view of a tensor that knows its version has to know it too.
        plain = func.is_view and ours and not ours[0].is_inference()
        with torch.inference_mode(torch.is_inference_mode_enabled() and not plain):
            inner = _mapped(_inner, args), _mapped(_inner, kwargs)
            result = func(*inner[0], **inner[1])
            if self.zeros and func.overloadpacket in (aten.empty, aten.empty_like):
                result.zero_()
            if self._tape is not None and not func.is_view:
                self._tape.append(_again(func, *inner, result))
            if func._schema.is_mutable:
                return args[0]
            if func.is_view and bool(ours) != there:
                result = result.clone()  # a copy, though not for the CPU
            for made in _tensors((result,)) if there else ():
                if made.dtype in self.lacks:
                    raise self.wrong(f"{func} makes {made.dtype}, which the device lacks")
            return _mapped(_outer, result) if there else result


@dataclass(slots=True)
class FakeGraph:
    """Operations that write their results where they first did."""

    device: FakeDevice
    tape: list[Callable[[], object]]

    def replay(self) -> None:
        with _disable_current_modes(), torch.inference_mode():
            for result in self.device.lent if not self.device.zeros else ():
                result.there.view(torch.uint8).fill_(GARBAGE)
            for run in self.tape:
                run()
        self.device.replayed += len(self.tape)
        self.device.time += len(self.tape)


def _again(func: Any, args: Any, kwargs: Any, result: Any) -> Callable[[], object]:
    """Return what computes into `result` again."""

    def run() -> None:
        found = func(*args, **kwargs)
        if not func._schema.is_mutable:
            for to, new in zip(_tensors((result,)), _tensors((found,)), strict=True):
                to.copy_(new)

    return run


@dataclass(slots=True)
class FakeQueue:
    """Copies are garbage until they are waited for."""

    device: FakeDevice

    def copy(self, to: Tensor, source: Tensor, after: Event) -> Event:
        assert isinstance(to, OnDevice)
        assert isinstance(after, FakeEvent)
        if after.time < self.device.last_use(to):
            raise self.device.wrong("a copy overwrites what is still used")
        self.device.queued += 1
        self.device.fly(source)
        to.there.fill_(GARBAGE)
        return QueuedCopy(to, source.clone())


class _Watch(TorchDispatchMode):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.run(func, args, kwargs or {})


def held_bytes() -> int:
    """Return the bytes of all tensors on fake devices."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is OnDevice]
    storages = [tensor.there.untyped_storage() for tensor in tensors]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _storage(tensor: OnDevice) -> int:
    return tensor.there.untyped_storage().data_ptr()


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the values, and those of sequences in them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the value with `function` of each leaf, as torch's slower `tree_map` does."""
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(function, v) for v in value])
    if isinstance(value, dict):
        return {name: _mapped(function, v) for name, v in value.items()}
    return function(value)


def _inner(leaf: Any) -> Any:
    return leaf.there if isinstance(leaf, OnDevice) else leaf


def _outer(leaf: Any) -> Any:
    return OnDevice(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice) else leaf
