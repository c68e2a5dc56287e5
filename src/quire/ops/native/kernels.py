"""The native CPU kernels, by instruction set. Only `ops` imports `quire._native`.

The functions of the `native_*` modules take them: each checks what the kernels cannot (device,
dtype, shape, layout), and passes addresses on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from quire import _native
from quire.ops.isa import available_isas, cpu_features, emulated_isas

__all__ = ["NativeKernels", "OnPool", "available_isas", "cpu_features", "emulated_isas", "method"]

P = ParamSpec("P")
R = TypeVar("R")


class NativeKernels:
    """The kernels of one instruction set.

    `isa` is a name out of `available_isas()`; without one, the most capable is taken. Raises
    ValueError, naming what is available, for one that is unknown or that this machine lacks.
    """

    def __init__(self, isa: str | None = None) -> None:
        self._kernels = _native.table(isa if isa is not None else _native.detect()[-1])

    def __repr__(self) -> str:
        return f"NativeKernels({self.isa!r})"

    @property
    def handle(self) -> _native.Kernels:
        """Return the table that native functions take."""
        return self._kernels

    @property
    def isa(self) -> str:
        """Return the name of the instruction set."""
        return self._kernels.isa


class OnPool:
    """Ops of one instruction set's kernels, on one pool of threads."""

    _table: NativeKernels
    _threads: _native.Pool


def method(
    op: Callable[Concatenate[NativeKernels, _native.Pool, P], R],
) -> Callable[Concatenate[OnPool, P], R]:
    """Return the method that runs `op` on its object's kernels and threads."""

    def run(self: OnPool, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return op(self._table, self._threads, *args, **kwargs)

    return run
